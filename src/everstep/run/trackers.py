"""Where the logs of a run go, as its configuration says."""

from typing import Any

from everstep import redaction
from everstep.run.attempt import Attempt
from everstep.run.record import Run
from everstep.run.showing import ShowingTracker
from everstep.tracking.background import BackgroundTracker
from everstep.tracking.config import TrackingConfig
from everstep.tracking.console import ConsoleTracker
from everstep.tracking.history import HistoryTracker
from everstep.tracking.jsonl import JsonLinesTracker
from everstep.tracking.mlflow import MlflowTracker
from everstep.tracking.plugins import TrackedRun, find_trackers, make_trackers
from everstep.tracking.samples import SampleFiles
from everstep.tracking.tensorboard import TensorBoardTracker
from everstep.tracking.tracker import MultiTracker, Tracker
from everstep.tracking.wandb import WandbTracker
from everstep.tracking.wandb_target import is_disabled, make_target, require_package


def require_trackers(config: TrackingConfig) -> None:
    """Refuses what is not installed, before anything is built.

    Raises:
      UsageError: A package is missing, or no tracker has that name.
    """
    if config.wandb:
        require_package()
    find_trackers(config.others)


def create_tracker(
    run: Run, params: Any, console: ConsoleTracker, attempt: Attempt | None, save_summary: bool, trainer: Any
) -> Tracker:
    """Returns one tracker for all of them, off the training thread.

    Args:
      run: The run.
      params: The experiment's configuration.
      console: What a person sees.
      attempt: Keeps the run's record, where something is trained.
      save_summary: Whether anything is to be kept but that record.
      trainer: Has what is shown beside numbers.

    Raises:
      UsageError: One of them cannot be made.
    """
    config = params.trainer
    sinks: list[Tracker] = [console]
    if save_summary:
        sinks.append(TensorBoardTracker(run.directory, config.validation_summary_subdir))
    if save_summary and attempt is not None:  # an evaluation job beside the trainer must not write the same file
        sinks.append(HistoryTracker(run.directory / "history.csv"))
    if attempt is not None:
        sinks.append(attempt)
    if save_summary and attempt is not None:
        sinks += _chosen(run, config.tracking, params)
    tracker = BackgroundTracker(MultiTracker(sinks))
    shows = save_summary and (config.tracking.samples or config.tracking.histogram_interval)
    return ShowingTracker(tracker, trainer, config.tracking) if shows else tracker


def _chosen(run: Run, config: TrackingConfig, params: Any) -> list[Tracker]:
    """Returns the trackers that the configuration asks for; files first, which others upload."""
    chosen: list[Tracker] = []
    if config.samples:
        chosen.append(SampleFiles(run.directory))
    if config.jsonl:
        chosen.append(JsonLinesTracker(run.directory / "metrics.jsonl"))
    if config.mlflow:
        chosen.append(_mlflow(run, config, params))
    if config.wandb and not is_disabled():
        chosen.append(_wandb(run, config, params))
    return [*chosen, *make_trackers(config.others, _tracked(run, params))]


def _tracked(run: Run, params: Any) -> TrackedRun:
    record = run.record
    attempt = len(record["attempts"]) + 1
    config = redaction.tree(params.as_dict())
    return TrackedRun(run.directory, run.id, record["experiment"], record["backend"], attempt, config)


def _tags(run: Run) -> dict[str, Any]:
    record = run.record
    return {"experiment": record["experiment"], "backend": record["backend"], "attempt": len(record["attempts"]) + 1}


def _wandb(run: Run, config: TrackingConfig, params: Any) -> WandbTracker:
    wanted = (config.wandb_project, config.wandb_entity, config.wandb_mode)
    target = make_target(run.id, run.record["experiment"], run.directory.resolve().name, *wanted)
    tree = redaction.tree(params.as_dict())
    return WandbTracker(run.directory, target, params=tree, tags=_tags(run))


def _mlflow(run: Run, config: TrackingConfig, params: Any) -> MlflowTracker:
    return MlflowTracker(
        run.directory,
        run.id,
        config.mlflow_experiment or run.record["experiment"],
        config.mlflow_uri or None,
        params=redaction.tree(params.as_dict()),
        tags=_tags(run),
        artifacts=["config.yaml"],
    )
