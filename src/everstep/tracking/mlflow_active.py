"""The active run of MLflow's own functions, `mlflow.log_metric` or autologging, while code of the user's runs.

MLflow keeps a stack of active runs for each thread; where it is empty, `mlflow.log_metric` starts a run of its own,
in another experiment. Inside `active_run` one run is at the bottom of every stack. It is opened when MLflow first
looks at the stack: code that does not use MLflow costs nothing, and leaves nothing behind where it fails.
"""

import contextlib
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
        from mlflow.tracking import fluent
        from mlflow.utils.thread_utils import ThreadLocalVariable
    except ImportError:  # a broken installation, which whoever tracks reports
        yield
        return
    former = fluent._active_run_stack, fluent._active_experiment_id
    fluent._active_run_stack = ThreadLocalVariable(lambda: _RunStack(open_run))
    fluent._active_experiment_id = None
    try:
        with _environment({_URI: uri, _EXPERIMENT: experiment, _EXPERIMENT_ID: None}):
            yield
    finally:
        fluent._active_run_stack, fluent._active_experiment_id = former


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
    """A thread's stack of active runs, which opens the lowest one when MLflow asks whether there is any."""

    def __init__(self, open_run: Callable[[], str]) -> None:
        super().__init__()
        self._open_run: Callable[[], str] | None = open_run

    def __len__(self) -> int:
        if self._open_run is not None:
            open_run, self._open_run = self._open_run, None
            try:
                self.append(_active(open_run()))
            except BaseException:
                self._open_run = open_run
                raise
        return super().__len__()


def _active(run_id: str) -> Any:
    import mlflow

    return mlflow.ActiveRun(mlflow.MlflowClient().get_run(run_id))
