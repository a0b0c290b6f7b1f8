"""Doors: packages whose names are loaded when they are first used.

The `__init__.py` of a package is its door. It lists what other packages may use, each name once, and imports none:

    if TYPE_CHECKING:
        from everstep.checkpoint.checkpointer import Checkpointer
        from everstep.checkpoint.retention import Retention

    __getattr__, __dir__ = lazy_names(__name__, __file__)

So `from everstep.checkpoint import Retention` loads one file of the package, and `import everstep` loads neither Keras
nor a backend. Type checkers read the same list. Where a name loads Keras, its start-up messages are not printed.
"""

import ast
import contextlib
import functools
import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.errors import missing_companion
from everstep.startup_messages import held_back


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a door.

    Args:
      package: Its `__name__`.
      file: Its `__file__`, which lists the names below `if TYPE_CHECKING:`.
    """

    @functools.cache
    def where() -> dict[str, str]:
        return listed(Path(file).read_text("utf-8"))

    def load(name: str) -> Any:
        if name == "__all__":
            return sorted(where())
        if name not in where():
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with contextlib.nullcontext() if "keras" in sys.modules else held_back():
            module = where()[name]
            if module == package:  # the name is a module of the package itself
                return importlib.import_module(f"{package}.{name}")
            try:
                value = getattr(importlib.import_module(module), name)
            except ModuleNotFoundError as error:
                raise missing_companion(error, f"{package}.{name}") or error from None
        setattr(sys.modules[package], name, value)  # the next use finds it without this call
        return value

    def names() -> list[str]:
        return [*where(), *(name for name in vars(sys.modules[package]) if name.startswith("__"))]

    return load, names


def listed(source: str) -> dict[str, str]:
    """Returns the names that a door lists, and the module that each is in."""
    return {
        name.name: statement.module
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for name in statement.names
    }
