"""Gin's own state, which lives as long as the process: bindings go in, and what was used of them comes out."""

import inspect
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.config.allowed import Allowed, resolve
from everstep.config.gin.fields import known_classes
from everstep.config.gin.syntax import Binding, Macro, Reference, names_in
from everstep.config.problem import Problem
from everstep.errors import UsageError, nearest

_BUILTINS = {"gin.constant", "gin.macro", "gin.singleton"}
_UNKNOWN = re.compile(r"No configurable matching (?:reference )?'@?(?:.*/)?([\w.]+)")


def bind(bindings: Sequence[Binding]) -> list[Problem]:
    """Hands bindings to gin, in order; returns everything wrong with them, each with its origin."""
    import gin

    rules = Allowed.here()
    with gin.unlock_config():
        problems = [problem for binding in bindings for problem in _bind(gin, binding, rules)]
        problems = problems or [problem for binding in bindings for problem in _open_macros(gin, binding)]
        return problems or _finalize(gin)


def operative_config() -> str | None:
    """Returns the bindings that gin configurables have used in this process, as gin text; None if gin is not in use."""
    gin = sys.modules.get("gin")
    if gin is None:
        return None
    text = gin.operative_config_str()
    return text if text or gin.config_str() else None


def clear() -> None:
    """Makes gin forget all bindings, and what was used of them."""
    gin = sys.modules.get("gin")
    if gin is not None:
        gin.clear_config()


def _bind(gin: Any, binding: Binding, rules: Allowed) -> Iterator[Problem]:
    try:
        if binding.context.is_dynamic:
            _require_allowed_names(binding, rules)
        gin.parse_config([*binding.context.header(), f"{binding.key} = {binding.text}"])
    except UsageError as error:
        yield Problem(binding.key, str(error), binding.origin)
    except Exception as error:  # gin raises whatever comes up
        yield Problem(binding.key, _explained(gin, error, binding), binding.origin)


def _require_allowed_names(binding: Binding, rules: Allowed) -> None:
    """Refuses what dynamic registration would make callable, unless the allowlist has it."""
    references = [one.name.rpartition("/")[2] for one in names_in(binding.value) if isinstance(one, Reference)]
    for selector in [*references, *([] if binding.macro is not None else [binding.selector])]:
        symbol = selector.partition(".")[0]
        if symbol in binding.context.symbols:
            resolve(binding.context.full_name(selector), rules)
        elif selector not in _BUILTINS:
            raise UsageError(f"{symbol!r} is not imported in this file, which uses dynamic registration")


def _explained(gin: Any, error: Exception, binding: Binding) -> str:
    """Returns gin's message with the nearest names."""
    text = str(error).partition("\n")[0]
    if unknown := _UNKNOWN.match(text):
        names = {known.name for _, known in gin.config._REGISTRY.items()} | {cls.__name__ for cls in known_classes()}
        hint = nearest(unknown[1], names - {"constant", "macro", "singleton"})
        return f"{text} {hint} (one of your own is known once its module is imported: --import my.module)"
    return f"{text} {_arguments(gin, binding)}" if "a parameter named" in text else text


def _arguments(gin: Any, binding: Binding) -> str:
    taken = inspect.signature(gin.get_configurable(binding.selector)).parameters
    return nearest(binding.argument, [name for name in taken if name != "self"])


def _open_macros(gin: Any, binding: Binding) -> Iterator[Problem]:
    """Yields the macros in a binding that nothing gives a value."""
    for one in names_in(binding.value):
        if isinstance(one, Macro) and not gin.config._CONSTANTS.matching_selectors(one.name):
            try:
                gin.query_parameter(repr(one))
            except ValueError:
                yield Problem(binding.key, f"there is no macro {one}: write {one.name} = …", binding.origin)


def _finalize(gin: Any) -> list[Problem]:
    """Lets gin, and hooks of the user's, check the whole: arguments that are required and have no value."""
    try:
        gin.finalize()
    except Exception as error:
        return [Problem("gin", str(error).partition("\n")[0])]
    return []
