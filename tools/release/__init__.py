"""What a release consists of; `make release` runs `python -m tools.release`, and nothing is uploaded.

archives.py  the sdist and the wheel, with the same bytes from the same commit
sbom.py      which packages the wheel was tried with, as CycloneDX
changes.py   the changelog's section of one version
recipe.py    the conda recipe, with the sdist's hash
"""
