"""Public names that are loaded when they are first used.

A module of public names lists where each one is defined, and imports none of them:

    _WHERE = {"EarlyStopping": "everstep.loop.actions.early_stopping"}

    __all__ = sorted(_WHERE)
    __getattr__, __dir__ = lazy_names(__name__, _WHERE)

So `import everstep.actions` loads neither Keras nor a backend; where a name loads them, their start-up messages are not
printed. For type checkers the same names are imported under
`TYPE_CHECKING`.
"""

import contextlib
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from everstep.startup_messages import held_back


def lazy_names(module: str, where: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns the `__getattr__` and the `__dir__` of a module of public names.

    Args:
      module: The module's `__name__`.
      where: The module that defines each name.
    """

    def load(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        with contextlib.nullcontext() if "keras" in sys.modules else held_back():
            value = getattr(importlib.import_module(where[name]), name)
        setattr(sys.modules[module], name, value)  # the next use finds it without this call
        return value

    def names() -> list[str]:
        return [*where, *(name for name in vars(sys.modules[module]) if name.startswith("__"))]

    return load, names
