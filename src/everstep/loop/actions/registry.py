"""Actions by name, for configurations."""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from everstep.config import instantiate, resolve
from everstep.errors import UsageError, nearest, problems_under

Registered = TypeVar("Registered", bound=Callable[..., Any])

_actions: dict[str, Callable[..., Any]] = {}


def register_action(name: str) -> Callable[[Registered], Registered]:
    """Registers the decorated class or function as an action that a configuration can name.

        @register_action("say_loss")
        def say_loss(logs):
            print(logs["training_loss"])

    A function is the action. A class is created once per run, with those of `params`, `trainer` and `model_dir` that
    its constructor takes, and its instance is the action. Running the same definition again replaces it.

    Raises:
      UsageError: The name is invalid, or is taken.
    """
    if not isinstance(name, str) or not re.fullmatch(r"[\w.+-]+(/[\w.+-]+)*", name):
        raise UsageError(
            "is not a valid name of an action",
            key="register_action",
            received=name,
            remedy="use letters, digits and . _ + -, with / between parts",
        )

    def register(action: Registered) -> Registered:
        registered = _actions.get(name)
        if registered is not None and _definition(registered) != _definition(action):
            raise UsageError(f"is registered already, by {'.'.join(_definition(registered))}", key=f"action {name!r}")
        _actions[name] = action
        return action

    return register


def make_actions(entries: Sequence[Any], key: str, context: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """Returns the actions that a configuration lists.

    Args:
      entries: Registered names, and mappings with a `_target_`.
      key: The key of the list, such as `trainer.eval_actions`.
      context: The arguments that a constructor may take by name.

    Raises:
      UsageError: One of them cannot be created; names its key.
    """
    return [_create(entry, f"{key}[{index}]", context) for index, entry in enumerate(entries)]


def _create(entry: Any, key: str, context: Mapping[str, Any]) -> Callable[..., Any]:
    try:
        action = _registered(entry, context) if isinstance(entry, str) else _described(entry, context)
    except UsageError as error:
        raise UsageError(problems_under(key, error)) from error
    if not callable(action):
        reason = f"creates a {type(action).__name__}, which cannot be called with logs"
        raise UsageError(reason, key=key, remedy="define its __call__(logs)")
    return action


def _registered(name: str, context: Mapping[str, Any]) -> Any:
    if name not in _actions:
        hint = "your own are known once their module is imported: --import my.module"
        raise UsageError("there is no such action", received=name, remedy=f"{nearest(name, _actions)} ({hint})")
    action = _actions[name]
    return action(**_accepted(action, context)) if isinstance(action, type) else action


def _described(entry: Mapping[str, Any], context: Mapping[str, Any]) -> Any:
    target = entry["_target_"]
    target = resolve(target) if isinstance(target, str) else target
    arguments = {name: value for name, value in _accepted(target, context).items() if name not in entry}
    return instantiate(entry, **({} if entry.get("_partial_") else arguments))


def _accepted(target: Callable[..., Any], context: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the context that a class or function takes as arguments."""
    return {name: value for name, value in context.items() if name in inspect.signature(target).parameters}


def _definition(item: Callable[..., Any]) -> tuple[str, str]:
    return getattr(item, "__module__", ""), getattr(item, "__qualname__", repr(item))
