"""The recipe for conda-forge: conda/recipe.yaml, with the version and the hash of an sdist."""

import re


def filled(recipe: str, version: str, sha256: str) -> str:
    """Returns the recipe for one sdist."""
    recipe = re.sub(r'^  version: ".*"$', f'  version: "{version}"', recipe, count=1, flags=re.MULTILINE)
    return re.sub(r'^  sha256: "\w*"$', f'  sha256: "{sha256}"', recipe, count=1, flags=re.MULTILINE)
