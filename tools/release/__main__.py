"""Builds a release in dist/, and describes it. Nothing is uploaded.

    python -m tools.release build
    python -m tools.release describe build/release/venv --extras tensorflow

`build` writes the sdist and the wheel. `describe` takes an environment that the wheel was installed into, and writes
beside them the bill of materials, the section of the changelog, the conda recipe and SHA256SUMS.
"""

import argparse
import sys
from importlib.metadata import distributions
from pathlib import Path

from tools.release import archives, changes, recipe, sbom

import everstep

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"


def build() -> None:
    """Writes the sdist and the wheel."""
    sdist, wheel = archives.build(ROOT, DIST, ROOT / "build" / "sdist", archives.commit_time(ROOT))
    if names := archives.untracked(sdist, ROOT):
        sys.exit(f"the sdist has files that are not in git, remove them or commit them: {', '.join(names[:10])}")
    print(f"{sdist.name}\n{wheel.name}")


def describe(environment: Path, extras: list[str]) -> None:
    """Writes what belongs to the two archives."""
    [sdist], [wheel] = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    version, changelog = everstep.__version__, (ROOT / "CHANGELOG.md").read_text("utf-8")
    packages = distributions(path=[str(path) for path in environment.glob("lib/python*/site-packages")])
    bill = sbom.bill("everstep", packages, wheel, archives.commit_time(ROOT), extras)
    template = (ROOT / "conda" / "recipe.yaml").read_text("utf-8")
    texts = {
        f"everstep-{version}.cdx.json": bill,
        f"CHANGES-{version}.md": changes.section(changelog, version),
        "recipe.yaml": recipe.filled(template, version, sbom.sha256(sdist)),
    }
    for name, text in texts.items():
        (DIST / name).write_text(text, "utf-8")
    names = sorted([sdist.name, wheel.name, *texts])
    sums = "".join(f"{sbom.sha256(DIST / name)}  {name}\n" for name in names)
    (DIST / "SHA256SUMS").write_text(sums, "utf-8")
    print(sums, end="")
    if changes.is_unreleased(changelog, version):
        print(f"CHANGELOG.md still says that {version} is unreleased: give its heading the date before you tag it")


def main() -> None:
    """Runs one of the two."""
    parser = argparse.ArgumentParser(prog="tools.release", description=__doc__.partition("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="writes the sdist and the wheel into dist/")
    described = commands.add_parser("describe", help="writes what belongs to them")
    described.add_argument("environment", type=Path, help="a virtual environment that has the wheel")
    described.add_argument("--extras", nargs="*", default=[], help="the extras that it was installed with")
    arguments = parser.parse_args()
    if arguments.command == "build":
        build()
    else:
        describe(arguments.environment, arguments.extras)


if __name__ == "__main__":
    main()
