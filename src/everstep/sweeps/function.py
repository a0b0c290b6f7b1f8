"""A swept function, and the program of one trial of it.

`python -m everstep.sweeps.function MODULE:NAME DIRECTORY KEY=VALUE…` calls it once.
"""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.config import parse_override
from everstep.errors import UsageError
from everstep.run import run_program

RESULT = "result.json"
"""The file with what a function has returned."""


def function_name(function: Callable[..., Any]) -> str | None:
    """Returns `module:name` of a function that another process can import; None for one of a notebook."""
    module, name = getattr(function, "__module__", "__main__"), getattr(function, "__qualname__", "<")
    if module == "__main__" or "<" in name or not getattr(sys.modules.get(module), "__file__", None):
        return None
    with contextlib.suppress(ImportError, AttributeError):
        return f"{module}:{name}" if find_function(f"{module}:{name}") is function else None
    return None


def find_function(name: str) -> Callable[..., Any]:
    """Returns the function `module:name`."""
    module, _, path = name.partition(":")
    found: Any = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found


def call_function(function: Callable[..., Any], values: Mapping[str, Any], run_dir: Path) -> dict[str, float]:
    """Calls a function with the values of a trial and its directory; writes what it returns, and returns it.

    Raises:
      UsageError: It returned neither a number nor numbers by name.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    returned = function(dict(values), run_dir)
    if not isinstance(returned, Mapping):
        returned = {"value": returned}
    try:
        numbers = {str(key): float(value) for key, value in returned.items()}
    except (TypeError, ValueError):
        raise UsageError(
            "must return a number, or numbers by name",
            key=getattr(function, "__name__", "the function"),
            received=returned,
        ) from None
    storage.write_json(run_dir / RESULT, {"values": redaction.tree(values), "metrics": numbers})
    return numbers


def main(arguments: Sequence[str]) -> int:
    """Calls the function; returns the exit code of the process."""
    name, run_dir, *words = arguments
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())

    def call() -> None:
        call_function(find_function(name), dict(parse_override(word) for word in words), Path(run_dir))

    return run_program(call, words)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
