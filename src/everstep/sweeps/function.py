"""A swept function, and the program of one trial of it.

`python -m everstep.sweeps.function MODULE:NAME DIRECTORY KEY=VALUE…` calls it once.
"""

import contextlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.config import parse_override
from everstep.errors import UsageError, nearest
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


DIRECTORIES = ("model_dir", "run_dir", "directory")
"""What a function that takes values by name may call the directory of its trial."""


def takes_names(function: Callable[..., Any], keys: Iterable[str]) -> bool:
    """Returns whether a function takes values by name, `train(units, model_dir)`, and not as a mapping."""
    parameters = _parameters(function)
    if any(one.kind is one.VAR_KEYWORD for one in parameters.values()):
        return all(one.default is not one.empty or one.name in (*keys, *DIRECTORIES) for one in _named(parameters))
    return any(key in parameters for key in keys)


def check_function(function: Callable[..., Any], keys: Sequence[str], optional: Sequence[str] = ()) -> None:
    """Checks before the first trial that a function can be called with the values of any trial.

    Args:
      function: The function.
      keys: The keys that every trial has.
      optional: The keys that some trials have.

    Raises:
      UsageError: It cannot; names the parameter.
    """
    parameters, name = _parameters(function), getattr(function, "__name__", "the function")
    known = [*keys, *optional]
    if not takes_names(function, known):
        with contextlib.suppress(TypeError):
            inspect.Signature(list(parameters.values())).bind({}, Path())
            return
        raise UsageError(
            f"takes ({', '.join(parameters)})",
            key=name,
            remedy=f"let it take the values by name, ({', '.join([*known, 'model_dir'])}), or as (values, directory)",
        )
    takes_any = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    if lacking := [key for key in known if key not in parameters and not takes_any]:
        raise UsageError(
            f"has no parameter {lacking[0]!r}, which varies", key=name, remedy=nearest(lacking[0], parameters)
        )
    for one in _named(parameters):
        if one.default is one.empty and one.name not in (*keys, *DIRECTORIES):
            why = "some trials do not have" if one.name in optional else "does not vary"
            raise UsageError(f"has a parameter {one.name!r}, which {why}", key=name, remedy="give it a default value")


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except ValueError:  # of a function in C
        return inspect.signature(lambda values, directory: None).parameters


def _named(parameters: Mapping[str, inspect.Parameter]) -> list[inspect.Parameter]:
    return [one for one in parameters.values() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]


def _call(function: Callable[..., Any], values: Mapping[str, Any], run_dir: Path) -> Any:
    if not takes_names(function, values):
        return function(dict(values), run_dir)
    parameters = _parameters(function)
    return function(**values, **{name: run_dir for name in DIRECTORIES if name in parameters and name not in values})


def call_function(function: Callable[..., Any], values: Mapping[str, Any], run_dir: Path) -> dict[str, float]:
    """Calls a function with the values of a trial and its directory; writes what it returns, and returns it.

    Raises:
      UsageError: It returned neither a number nor numbers by name.
    """
    run_dir.mkdir(parents=True, exist_ok=True)
    returned = _call(function, values, run_dir)
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
