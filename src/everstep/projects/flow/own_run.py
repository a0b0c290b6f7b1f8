"""What surrounds a task's `run`, whoever calls it: it is recorded and tracked, and follows the first two steps."""

import contextlib
import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from everstep.errors import UsageError
from everstep.run import Interrupted, Status

PREPARING = ("fetch_data", "preprocessing_train")
"""The steps before `run`."""

_WRAPPED = "_everstep_is_recorded"


def record_steps(cls: type, base: type, steps: Iterable[str]) -> None:
    """Makes the steps and hooks of a class log to the task's run, whoever calls them, and its `run` a recorded one.

    Args:
      cls: The class; what it inherits from a class that is no task counts, too.
      base: `FlowTask`, whose own methods stay as they are.
      steps: Their names.
    """
    for name in steps:
        found = inspect.getattr_static(cls, name)
        if inspect.isfunction(found) and found is not vars(base)[name] and not hasattr(found, _WRAPPED):
            wrapped = _recorded_run(found) if name == "run" else _within_run(found)
            setattr(wrapped, _WRAPPED, True)
            setattr(cls, name, wrapped)


def _within_run(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a step or a hook of a class; MLflow's functions in it log to the task's run."""
    name = method.__name__

    @functools.wraps(method)
    def called(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._everstep_context is None:  # not created by `create_task`
            return method(self, *args, **kwargs)
        with self._everstep_context.active_run():
            result = method(self, *args, **kwargs)
        self._everstep_called = self._everstep_called | {name}
        return result

    return called


def _recorded_run(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a class's own `run`: recorded, and preceded by the first two steps unless it or its caller calls them."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._everstep_context is None or self._everstep_context.is_running:
            return method(self, *args, **kwargs)
        with recorded(self, own=True):
            if not _calls_steps(type(self)) and not self._everstep_called.issuperset(PREPARING):
                self._everstep_prepare()
            result = method(self, *args, **kwargs)
            self.metrics = self.metrics or (result if isinstance(result, dict) else {})
            return result

    return run


@contextlib.contextmanager
def recorded(task: Any, own: bool) -> Iterator[None]:
    """Inside the block a task runs: its run is MLflow's active one, and how it ends is recorded.

    Args:
      task: The task.
      own: Whether its `run` is the user's; the default one is recorded by the loop, from the training on.
    """
    context = task._everstep_opened()
    if context.is_running:
        yield
        return
    context.is_running = True
    try:
        with context.active_run(), _ended(context, own):
            yield
            if own:
                task.directory = context.directory
                context.end_record("finished", "done")
    finally:
        context.is_running = False


@contextlib.contextmanager
def _ended(context: Any, own: bool) -> Iterator[None]:
    """Records a failure inside the block, and ends tracking."""
    try:
        yield
    except BaseException as error:
        # A failure before the run has begun, such as in preparing data, is recorded, unless it is an invalid request.
        was_tracked = context.tracking is not None
        if (own or context.own is not None) if was_tracked else not isinstance(error, UsageError):
            context.end_record(*_ending(error))
        context.close()
        raise
    context.close()


def initialize(task: Any, arguments: Sequence[Any]) -> None:
    """Calls a task's `__init__`; what it logs belongs to the task's run."""
    context = task._everstep_opened()
    with context.active_run():
        try:
            task.__init__(*arguments)
        except BaseException as error:
            if context.own is not None:  # it has logged something
                context.end_record(*_ending(error))
                context.close()
            raise


def _ending(error: BaseException) -> tuple[Status, str]:
    if isinstance(error, Interrupted):
        return "interrupted", error.reason
    status: Status = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
    return status, f"{type(error).__name__}: {error}".splitlines()[0]


def _calls_steps(cls: type) -> bool:
    """Returns whether the `run` of a task calls the first two steps itself, or the default one, which does."""
    bases = {"super", *(base.__name__ for base in cls.__mro__)}
    for base in cls.__mro__:
        if "run" not in vars(base):
            continue
        code = getattr(inspect.unwrap(vars(base)["run"]), "__code__", None)
        names = set[str]() if code is None else set(_names(code))
        if not names.isdisjoint((*PREPARING, "_everstep_prepare")):
            return True
        if "run" not in names or names.isdisjoint(bases):
            return False
    return True


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the names of everything that a function uses, also in functions inside of it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
