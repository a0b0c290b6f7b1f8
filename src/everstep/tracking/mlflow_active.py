"""The active run of MLflow's own functions, `mlflow.log_metric` or autologging, while code of the user's runs.

MLflow keeps a stack of active runs for each thread; where it is empty, `mlflow.log_metric` starts a run of its own,
in another experiment. Inside `active_run` one run is at the bottom of every stack. It is opened when MLflow first
looks at the stack: code that does not use MLflow costs nothing, and leaves nothing behind where it fails.
`mlflow.start_run()` starts a run below it, where MLflow would refuse to.
"""

import contextlib
import functools
import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.tracking.mlflow import prepare_client

_URI, _EXPERIMENT, _EXPERIMENT_ID = "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME", "MLFLOW_EXPERIMENT_ID"


@contextlib.contextmanager
def active_run(uri: str, experiment: str, open_run: Callable[[], str]) -> Iterator[None]:
    """Inside the block `mlflow.active_run()` is one run, in every thread.

    Args:
      uri: The server or database of the run; MLflow's default inside the block.
      experiment: Its experiment, where runs that the block starts below it are as well.
      open_run: Returns the run's id on the server; called, in any thread, when MLflow first asks for the active run.
    """
    prepare_client(uri)
    try:
        import mlflow
        from mlflow.tracking import fluent
        from mlflow.utils.thread_utils import ThreadLocalVariable
    except ImportError:  # a broken installation, which whoever tracks reports
        yield
        return
    former = fluent._active_run_stack, fluent._active_experiment_id, mlflow.start_run
    fluent._active_run_stack = ThreadLocalVariable(lambda: _RunStack(open_run))
    fluent._active_experiment_id = None
    mlflow.start_run = _nested(mlflow.start_run)
    try:
        with _environment({_URI: uri, _EXPERIMENT: experiment, _EXPERIMENT_ID: None}):
            yield
    finally:
        fluent._active_run_stack, fluent._active_experiment_id, mlflow.start_run = former


def _nested(start_run: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `mlflow.start_run` for code inside of a run: what it starts is nested."""

    @functools.wraps(start_run)
    def nested(*args: Any, **kwargs: Any) -> Any:
        bound = inspect.signature(start_run).bind(*args, **kwargs)
        bound.arguments["nested"] = True
        return start_run(*bound.args, **bound.kwargs)

    return nested


@contextlib.contextmanager
def _environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Inside the block environment variables have these values, or are not set."""
    former = {name: os.environ.get(name) for name in values}
    try:
        _set(values)
        yield
    finally:
        _set(former)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


class _RunStack(list[Any]):
    """A thread's stack of active runs, which opens the lowest one when MLflow asks whether there is any.

    After `mlflow.end_run()` it does so again: what follows belongs to the same run.
    """

    def __init__(self, open_run: Callable[[], str]) -> None:
        super().__init__()
        self._open_run, self._is_opening = open_run, False

    def __len__(self) -> int:
        if super().__len__() == 0 and not self._is_opening:
            self._is_opening = True
            try:
                self.append(_active(self._open_run()))
            finally:
                self._is_opening = False
        return super().__len__()


def _active(run_id: str) -> Any:
    import mlflow

    return mlflow.ActiveRun(mlflow.MlflowClient().get_run(run_id))
