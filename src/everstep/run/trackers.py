"""The trackers of a run, and what they log beside numbers: samples, histograms, the progress of the run."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from everstep import redaction
from everstep.data import first_samples, host_array, how_to_feed_faster, nest
from everstep.evaluation import picture
from everstep.gang import Gang
from everstep.loop import Hook, random_state
from everstep.run.attempt import Attempt
from everstep.run.cost import Throughput
from everstep.run.kept_work import goodput
from everstep.run.labels import tag_words
from everstep.run.record import FORKED_FROM, Run
from everstep.task import unpack
from everstep.tracking import (
    BackgroundTracker,
    ConsoleTracker,
    DataWaitAdvice,
    Facts,
    HistoryTracker,
    JsonLinesTracker,
    LogKind,
    MlflowNames,
    MlflowTracker,
    MultiTracker,
    NoopTracker,
    SampleFiles,
    TensorBoardTracker,
    TrackedRun,
    Tracker,
    TrackingConfig,
    WandbTracker,
    find_trackers,
    is_disabled,
    make_target,
    make_trackers,
    require_package,
    system_metrics,
    trial_name,
)

logger = logging.getLogger(__name__)


class SampleTracker(Tracker):
    """Adds samples and histograms, as configured, on the way to another tracker.

    The training thread calls it, when the state is that of the logged step. It does not influence training; a failure
    is logged once, and the call is not repeated.

    Args:
      tracker: The tracker that receives everything.
      trainer: The trainer with the model, and the first batch of the validation data.
      config: How many samples, and how often histograms.
    """

    def __init__(self, tracker: Tracker, trainer: Any, config: TrackingConfig) -> None:
        self._tracker, self._trainer = tracker, trainer
        self._num_samples, self._interval = config.samples, config.histogram_interval

    def start(self, step: int) -> None:
        """Starts the other tracker."""
        self._tracker.start(step)

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Passes the numbers on, with samples and histograms where they are due."""
        self._tracker.log(step, logs, kind)
        if kind == "validation" and self._num_samples:
            self._num_samples = self._num_samples if _works("samples", lambda: self._show(step)) else 0
        if kind == "train" and self._interval and step % self._interval == 0:
            self._interval = self._interval if _works("histograms", lambda: self._count(step)) else 0

    def flush(self) -> None:
        """Flushes the other tracker."""
        self._tracker.flush()

    def close(self) -> None:
        """Closes the other tracker."""
        self._tracker.close()

    def _show(self, step: int) -> None:
        for name, value in self._shown().items():
            kind, shown, captions = images_or_text(name, value, self._num_samples)
            if kind == "images":
                self._tracker.log_images(step, name, shown, captions)
            else:
                self._tracker.log_text(step, name, shown)

    def _shown(self) -> Mapping[str, Any]:
        """Returns what the task shows of the first validation samples, with the weights that are evaluated."""
        trainer, task = self._trainer, self._trainer.task
        inputs = nest.map_leaves(host_array, first_samples(trainer.example, self._num_samples))
        drawn = random_state.get()
        try:
            with trainer.prefetch_paused(), trainer.averaged(), trainer.engine.model_view() as model:
                written = task.show_written(inputs, model)
                if written is not None:
                    return written
                outputs = task.inference_step(unpack(inputs)[0], model)
                return dict(task.show(inputs, nest.map_leaves(host_array, outputs)) or {})
        finally:
            random_state.set(drawn)

    def _count(self, step: int) -> None:
        self._tracker.log_histograms(step, self._trainer.engine.weights())


def _works(what: str, call: Callable[[], None]) -> bool:
    try:
        call()
    except Exception:
        logger.exception("%s cannot be logged, and are switched off; training continues", what)
        return False
    return True


def images_or_text(name: str, value: Any, most: int) -> tuple[str, list[Any], Sequence[str]]:
    """Returns whether `Task.show` returned images or text under a name, and at most so many of them.

    Raises:
      TypeError: It returned neither.
    """
    if isinstance(value, str) or (isinstance(value, list) and all(isinstance(one, str) for one in value)):
        return "text", [value] if isinstance(value, str) else value[:most], ()
    images, captions = value if isinstance(value, tuple) and len(value) == 2 else (value, ())
    pictures: list[Any] = [None]
    with contextlib.suppress(TypeError, ValueError):
        pictures = [picture(host_array(image)) for image in images[:most]]
    if any(one is None for one in pictures) or not all(isinstance(caption, str) for caption in captions):
        raise TypeError(
            f"show returned for {name!r} neither texts nor images: expected a list of str, an array (n, h, w) or "
            "(n, h, w, channels), or such an array and a list of captions"
        )
    return "images", pictures, [*captions, *[""] * len(pictures)][: len(pictures)]


def require_trackers(config: TrackingConfig) -> None:
    """Checks that the configured trackers, and what reads the machine, are installed, before anything is built.

    Raises:
      UsageError: A package is missing, or no tracker has that name.
    """
    system_metrics.require(config.system_seconds)
    for offered in TRACKERS:
        if offered.is_on(config):
            offered.require()
    find_trackers(config.others)


def create_tracker(
    gang: Gang,
    run: Run,
    params: Any,
    console: ConsoleTracker,
    attempt: Attempt | None,
    save_summary: bool,
    trainer: Any,
) -> Tracker:
    """Returns one tracker for all of them, off the training thread; of several processes the first one writes.

    Args:
      gang: The processes that train the run.
      run: The run.
      params: The experiment's configuration.
      console: The tracker that prints.
      attempt: The tracker that updates the run's record; None if nothing is trained.
      save_summary: Whether to write anything but that record.
      trainer: The trainer with the model and the samples to log.

    Raises:
      UsageError: One of them cannot be created.
    """
    config = params.trainer
    if not gang.is_first:
        return _with_samples(NoopTracker(), trainer, config.tracking, save_summary)
    sinks: list[Tracker] = [console]
    if save_summary:
        sinks.append(TensorBoardTracker(run.directory, config.validation_summary_subdir))
    if save_summary and attempt is not None:  # a separate evaluation process must not write the same file
        sinks.append(HistoryTracker(run.directory / "history.csv"))
    if attempt is not None:
        sinks.append(attempt)
        sinks.append(DataWaitAdvice(lambda: how_to_feed_faster(trainer.train_stream)))
    if save_summary and attempt is not None:
        sinks += _configured(run, config.tracking, params)
    written = _with_samples(BackgroundTracker(MultiTracker(sinks)), trainer, config.tracking, save_summary)
    return Throughput(written, trainer)


def _with_samples(tracker: Tracker, trainer: Any, config: TrackingConfig, save_summary: bool) -> Tracker:
    """Returns a tracker that also gets samples and histograms, if they are configured.

    Every process needs one, also if it writes nothing: all of them take part where a divided model is read.
    """
    shows = save_summary and (config.samples or config.histogram_interval)
    return SampleTracker(tracker, trainer, config) if shows else tracker


def _configured(run: Run, config: TrackingConfig, params: Any) -> list[Tracker]:
    """Returns the trackers that are configured."""
    chosen = [offered.make(run, config, params) for offered in TRACKERS if offered.is_on(config)]
    return [*(one for one in chosen if one is not None), *make_trackers(config.others, _tracked(run, params))]


def _tracked(run: Run, params: Any) -> TrackedRun:
    record = run.record
    attempt = len(record["attempts"]) + 1
    config = redaction.tree(params.as_dict())
    labels = {key: redaction.tree(record[key]) for key in ("name", "tags", "notes")}
    return TrackedRun(run.directory, run.id, record["experiment"], record["backend"], attempt, config, **labels)


def _tags(run: Run) -> dict[str, Any]:
    record, origin = run.record, run.record.get(FORKED_FROM) or {}
    own = {"experiment": record["experiment"], "backend": record["backend"], "attempt": len(record["attempts"]) + 1}
    return own | {f"everstep.forked_from_{key}": origin[key] for key in ("run", "step") if origin}


def _samples(run: Run, config: TrackingConfig, params: Any) -> SampleFiles:
    return SampleFiles(run.directory)


def _jsonl(run: Run, config: TrackingConfig, params: Any) -> JsonLinesTracker:
    return JsonLinesTracker(run.directory / "metrics.jsonl")


def _wandb(run: Run, config: TrackingConfig, params: Any) -> WandbTracker | None:
    if is_disabled():
        return None
    wanted = (config.wandb_project, config.wandb_entity, config.wandb_mode)
    target = make_target(run.id, run.record["experiment"], trial_name() or run.directory.resolve().name, *wanted)
    tree = redaction.tree(params.as_dict())
    words, notes = redaction.tree(tag_words(run.record["tags"])), redaction.text(run.record["notes"])
    return WandbTracker(run.directory, target, params=tree, tags=_tags(run), words=words, notes=notes)


def _mlflow(run: Run, config: TrackingConfig, params: Any) -> MlflowTracker:
    experiment = config.mlflow_experiment or run.record["experiment"]
    names = MlflowNames(experiment, params=params.as_dict(), tags={**_labels_on_mlflow(run), **_tags(run)})
    return MlflowTracker(run.directory, run.id, names, config.mlflow_uri or None, artifacts=["config.yaml"])


def _labels_on_mlflow(run: Run) -> dict[str, str]:
    """Returns the user's tags, and the notes under the tag that MLflow shows as the run's description."""
    tags = {name: value or "true" for name, value in run.record["tags"].items()}
    notes = {"mlflow.note.content": run.record["notes"]} if run.record["notes"] else {}
    labels: dict[str, str] = redaction.tree(tags | notes)
    return labels


@dataclasses.dataclass(frozen=True)
class OfferedTracker:
    """A tracker that a key of `trainer.tracking` turns on.

    Attributes:
      key: The field of `TrackingConfig`.
      make: Creates the tracker of an attempt, from the run, the section and the whole configuration; None for none.
      require: Raises a UsageError if a package is missing, before anything is built.
    """

    key: str
    make: Callable[[Run, TrackingConfig, Any], Tracker | None]
    require: Callable[[], None] = lambda: None

    def is_on(self, config: TrackingConfig) -> bool:
        """Returns whether the configuration turns it on."""
        return bool(getattr(config, self.key))


TRACKERS = (
    OfferedTracker("samples", _samples),
    OfferedTracker("jsonl", _jsonl),
    OfferedTracker("mlflow", _mlflow),
    OfferedTracker("wandb", _wandb, require_package),
)
"""Every tracker that a key turns on; those that write files first, because servers upload them."""


class LiveFacts(Hook):
    """The progress of a run, for the live display; called ten times a second, so it reads no file.

    It is a hook to know the controller, which is created after the console.

    Args:
      run: The run whose attempts are shown.
      trainer: The trainer; its passes over the data are shown where the schedule counts no epochs.
    """

    def __init__(self, run: Run, trainer: Any) -> None:
        self._run, self._trainer = run, trainer

    def __call__(self, step: int) -> Facts:
        """Returns the facts after `step` steps."""
        attempts, schedule = self._run.record["attempts"], self.controller.schedule
        epochs = schedule.epochs_done(step)
        return Facts(
            epoch=self._trainer.epochs_done(step) if epochs is None else epochs,
            epochs=schedule.total_epochs,
            steps_per_epoch=schedule.epoch_steps,
            phase=self._phase(attempts),
            saves=not self.controller.saver.is_disabled,
            checkpoint=self._checkpoint(),
            attempts=max(1, len(attempts)),
            goodput=self._goodput(attempts, step),
        )

    def _phase(self, attempts: list[dict[str, Any]]) -> str:
        if self._trainer.evaluating:
            return "evaluating"
        return "starting" if attempts and attempts[-1]["first_step"] is None else ""

    def _checkpoint(self) -> tuple[int, float | None] | None:
        """Returns the newest step on disk, and its age in seconds, if this attempt has saved it."""
        if self._run.newest_save is not None:
            step, when = self._run.newest_save
            return step, time.monotonic() - when
        restored = self.controller.saver.step
        return (restored, None) if restored else None

    def _goodput(self, attempts: list[dict[str, Any]], step: int) -> float | None:
        if not attempts:
            return None
        now = [*attempts[:-1], {**attempts[-1], "to_step": step}]
        return goodput({"step": step, "attempts": now}).ratio
