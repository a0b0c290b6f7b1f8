"""Where the logs of a run go, as its configuration says."""

from typing import Any

from everstep import redaction
from everstep.run.attempt import Attempt
from everstep.run.record import Run
from everstep.tracking.background import BackgroundTracker
from everstep.tracking.config import TrackingConfig
from everstep.tracking.console import ConsoleTracker
from everstep.tracking.history import HistoryTracker
from everstep.tracking.mlflow import MlflowTracker
from everstep.tracking.tensorboard import TensorBoardTracker
from everstep.tracking.tracker import MultiTracker, Tracker


def create_tracker(
    run: Run, params: Any, console: ConsoleTracker, attempt: Attempt | None, save_summary: bool
) -> Tracker:
    """Returns one tracker for all of them, off the training thread.

    Args:
      run: The run.
      params: The experiment's configuration.
      console: What a person sees.
      attempt: Keeps the run's record, where something is trained.
      save_summary: Whether anything is to be kept but that record.
    """
    config = params.trainer
    sinks: list[Tracker] = [console]
    if save_summary:
        sinks.append(TensorBoardTracker(run.directory, config.validation_summary_subdir))
    if save_summary and attempt is not None:  # an evaluation job beside the trainer must not write the same file
        sinks.append(HistoryTracker(run.directory / "history.csv"))
    if attempt is not None:
        sinks.append(attempt)
    if save_summary and attempt is not None and config.tracking.mlflow:
        sinks.append(_mlflow(run, config.tracking, params))
    return BackgroundTracker(MultiTracker(sinks))


def _mlflow(run: Run, config: TrackingConfig, params: Any) -> MlflowTracker:
    record = run.record
    tags = {"experiment": record["experiment"], "backend": record["backend"], "attempt": len(record["attempts"]) + 1}
    return MlflowTracker(
        run.directory,
        run.id,
        config.mlflow_experiment or record["experiment"],
        config.mlflow_uri or None,
        params=redaction.tree(params.as_dict()),
        tags=tags,
        artifacts=["config.yaml"],
    )
