"""The order of the arguments of `run_experiment`: Everstep's, or Model Garden's; any other is refused."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from everstep.config import Config
from everstep.errors import UsageError, kind_of

_P = ParamSpec("_P")
_R = TypeVar("_R")


def accepts_model_garden_order(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Makes a function accept Model Garden's order, too: `(strategy or None, task, mode, params, model_dir, …)`."""
    order = ("distribution_strategy", "task", "mode", "params", "model_dir", "run_post_eval", "save_summary")

    @functools.wraps(function)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if args and (args[0] is None or hasattr(args[0], "scope")):
            named = dict(zip(order, args, strict=False))
            return function(*args[len(order) :], **{**named, **kwargs})  # type: ignore[arg-type]
        return function(*args, **kwargs)

    return call


def require_order(task: Any, params: Any) -> None:
    """Refuses a call in which the task and its configuration are not where they belong.

    Raises:
      UsageError: They are exchanged, or missing.
    """
    if isinstance(task, Config | type) or not isinstance(params, Config):
        raise UsageError(
            f"expected the task, then its configuration, but got {kind_of(task)}, then {kind_of(params)}",
            key="params",
            remedy="run_experiment(task, params, model_dir)",
        )
