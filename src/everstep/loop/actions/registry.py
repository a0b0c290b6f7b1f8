"""Actions by name, for configurations."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from everstep.config import instantiate
from everstep.config.allowed import resolve
from everstep.errors import UsageError, nearest, problems_under

Registered = TypeVar("Registered", bound=Callable[..., Any])

_actions: dict[str, Callable[..., Any]] = {}


def register_action(name: str) -> Callable[[Registered], Registered]:
    """Registers the decorated class or function as an action that a configuration can name.

        @register_action("say_loss")
        def say_loss(logs):
            print(logs["training_loss"])

    A function is the action. A class is made once per run, with those of `params`, `trainer` and `model_dir` that its
    constructor names, and its instance is the action. Running the same definition again replaces it.

    Raises:
      UsageError: The name is not one, or is taken.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name):
        raise UsageError(f"{name!r} is no name for an action: parts of letters, digits . _ + - with / between")

    def register(action: Registered) -> Registered:
        held = _actions.get(name)
        if held is not None and _definition(held) != _definition(action):
            raise UsageError(f"action {name!r} is registered already, by {'.'.join(_definition(held))}")
        _actions[name] = action
        return action

    return register


def make_actions(entries: Sequence[Any], key: str, context: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """Returns the actions that a configuration lists.

    Args:
      entries: Registered names, and mappings with a `_target_`.
      key: Where they are listed, such as `trainer.eval_actions`.
      context: What a constructor may ask for by name.

    Raises:
      UsageError: One of them cannot be made; with its key path.
    """
    return [_made(entry, f"{key}[{index}]", context) for index, entry in enumerate(entries)]


def _made(entry: Any, key: str, context: Mapping[str, Any]) -> Callable[..., Any]:
    try:
        action = _registered(entry, context) if isinstance(entry, str) else _described(entry, context)
    except UsageError as error:
        raise UsageError(problems_under(key, error)) from error
    if not callable(action):
        raise UsageError(f"{key}: made a {type(action).__name__}, which cannot be called with logs: give it __call__")
    return action


def _registered(name: str, context: Mapping[str, Any]) -> Any:
    if name not in _actions:
        hint = "one of your own is known once its module is imported: --import my.module"
        raise UsageError(f"there is no action {name!r}; {nearest(name, _actions)} ({hint})")
    action = _actions[name]
    return action(**_wanted(action, context)) if isinstance(action, type) else action


def _described(entry: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    target = entry["_target_"]
    target = resolve(target) if isinstance(target, str) else target
    wanted = {name: value for name, value in _wanted(target, context).items() if name not in entry}
    return instantiate(entry, **({} if entry.get("_partial_") else wanted))


def _wanted(target: Callable[..., Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what of the context a class or function names among its arguments."""
    return {name: value for name, value in context.items() if name in inspect.signature(target).parameters}


def _definition(item: Callable[..., Any]) -> tuple[str, str]:
    return getattr(item, "__module__", ""), getattr(item, "__qualname__", repr(item))
