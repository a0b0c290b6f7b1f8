"""Importing the user's own modules, which register experiments."""

import importlib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from everstep.cli.quiet import quiet
from everstep.config import allowed
from everstep.errors import UsageError


def import_all(asked: Sequence[str], stored: Sequence[tuple[Any, str]]) -> list[str]:
    """Imports what the user asked for, and what a stored configuration asks for as far as the project allows it."""
    import_modules(asked)
    names = list(asked)
    for modules, origin in stored:
        for module in modules:
            if module not in names:
                _require_allowed(module, origin)
                import_modules([module], f"imports in {origin}")
                names.append(module)
    return names


def _require_allowed(module: str, origin: str) -> None:
    try:
        allowed.require_module(module)
    except UsageError as error:
        raise UsageError(f"imports: {error} (from {origin}); or pass --import {module}") from None


def import_modules(names: Iterable[str], origin: str = "--import") -> None:
    """Imports the user's modules, from the current directory as well as from installed packages.

    Args:
      names: They.
      origin: Who asks for them, for errors.

    Raises:
      UsageError: There is no such module.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    for name in names:
        if not all(part.isidentifier() for part in name.split(".")):
            raise UsageError(f"{origin}: {name!r} is no module name: write package.module, no slash, no .py")
        try:
            with quiet():  # it may import a backend
                importlib.import_module(name)
        except ModuleNotFoundError as error:
            if not f"{name}.".startswith(f"{error.name}."):
                raise  # found, but it imports something that is not there
            where = f"in {os.getcwd()} or in the installed packages"
            raise UsageError(f"{origin}: no module {name!r} {where}") from error
