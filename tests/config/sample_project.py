"""A user's project for the tests of names and of gin: some of its modules are safe, others lead to unsafe code."""

import textwrap
from pathlib import Path

FILES = {
    "pyproject.toml": """
        [tool.everstep]
        allow = ["trusted_lib", "half_trusted.open"]
    """,
    "src/my_project/__init__.py": """
        import functools
        import os
        import pathlib
        import shutil
        import subprocess

        import trusted_lib

        run_anything = subprocess.run
        list_later = functools.partial(os.listdir, ".")
        remember = functools.cache(os.system)
        writer = pathlib.Path("written").write_text
        Folder = pathlib.Path
    """,
    "src/my_project/models.py": """
        import functools

        class Net:
            def __init__(self, units=1, inner=None, *more, **options):
                self.units, self.inner, self.more, self.options = units, inner, more, options

            @classmethod
            def wide(cls, units=100):
                return cls(units)

            def __call__(self, value):
                return value

        def double(value):
            return 2 * value

        @functools.cache
        def triple(value):
            return 3 * value

        quadruple = functools.partial(double, 4)
        net = Net()
        TABLE = {"a": 1}
        strict_units = 3

        def refuse():
            raise ValueError("never")
    """,
    "src/my_project/kept_apart.py": """
        import sys
        sys.kept_apart_was_imported = True
    """,
    "src/my_project/broken.py": "import a_package_that_is_not_there",
    "src/my_project/gin_parts.py": """
        import gin

        @gin.configurable
        def area(width=1, height=1):
            return width * height

        @gin.configurable
        class Box:
            def __init__(self, depth=1, made_by=None):
                self.depth, self.made_by = depth, made_by

        def unregistered(size=1):
            return size
    """,
    "flat_module.py": "def answer(): return 42",
    "site/trusted_lib/__init__.py": "def fetch(): return 'fetched'",
    "site/half_trusted/__init__.py": "def closed(): return 1",
    "site/half_trusted/open.py": "def ready(): return 2",
    "site/stranger/__init__.py": "def wander(): return 3",
}

MODULES = ("my_project", "flat_module", "trusted_lib", "half_trusted", "stranger")


def write(root: Path) -> list[str]:
    """Writes the project; returns what Python's path needs, the packages beside it included."""
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text), encoding="utf-8")
    return [str(root), str(root / "src"), str(root / "site")]
