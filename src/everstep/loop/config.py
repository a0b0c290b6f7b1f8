"""`TrainerConfig`: how long to train, when to log, evaluate and save, and with which optimizer."""

import dataclasses
import math
import numbers
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import pydantic
from annotated_types import Ge, Gt, Lt

from everstep.config import Config, Declined
from everstep.errors import Problem, UsageError
from everstep.loop.stop_at import is_time_of_day
from everstep.task.optim import OptimizationConfig
from everstep.tracking import TrackingConfig

_EPOCHS = re.compile(r"([0-9]+(?:\.[0-9]+)?) epochs?")
_AnyTrainerConfig = TypeVar("_AnyTrainerConfig", bound="TrainerConfig")
_STEPS = re.compile(r"([0-9]{1,15})\.\.([0-9]{1,15})")


def epochs_in(interval: Any) -> float | None:
    """Returns the number of epochs of an interval such as `0.5 epochs`; None for an interval in steps."""
    match = _EPOCHS.fullmatch(interval) if isinstance(interval, str) else None
    return float(match[1]) if match else None


def _checked_form(value: Any) -> Any:
    """Returns a valid interval unchanged; the error names both of its forms."""
    whole = isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())
    if (whole and not isinstance(value, bool)) or epochs_in(value):
        return value
    raise UsageError("expected steps, as 500, or epochs, as '0.5 epochs'", received=value)


Interval = Annotated[
    int | str,
    pydantic.BeforeValidator(_checked_form),
    pydantic.WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": f"^{_EPOCHS.pattern}$"}]}),
]
"""Steps as a number, or epochs as text: `1 epoch`, `0.5 epochs`. `in_steps` converts both to steps."""

_BYTES = re.compile(r"([0-9]{1,12}(?:\.[0-9]+)?) ?(kB|MB|GB|TB)")


def in_bytes(size: int | str) -> int:
    """Returns the bytes of a size such as `2GB`, whose units are powers of a thousand."""
    if isinstance(size, int):
        return size
    number, unit = _BYTES.fullmatch(size).groups()  # type: ignore[union-attr]
    return int(float(number) * 1000 ** (1 + ("kB", "MB", "GB", "TB").index(unit)))


def _checked_size(value: Any) -> Any:
    """Returns a valid size unchanged."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if is_number or (isinstance(value, str) and _BYTES.fullmatch(value)):
        return value
    raise UsageError("expected bytes, as '2GB', '500 MB' or a whole number above 0", received=value)


Size = Annotated[
    int | str,
    pydantic.BeforeValidator(_checked_size),
    pydantic.WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": f"^{_BYTES.pattern}$"}]}),
]
"""Bytes as a number, or as text with a unit: `2GB`. `in_bytes` converts both."""

_FOLDERS = (  # of a run directory
    *("checkpoints", "ema_checkpoints", "export", "exported_ckpts", "profile", "samples", "spool", "train", "wandb"),
)

INTERVALS = ("steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval")
"""The fields that may be specified in epochs."""

_CALLS = "every backend runs as many compiled steps in a call as it can, with the same bits however many they are"

_DECLINED = {
    "use_orbit": Declined("there is one loop, which works as orbit's on every backend", True, False),
    "train_tf_while_loop": Declined(_CALLS, True),
    "train_tf_function": Declined("steps are always compiled", True),
    "eval_tf_function": Declined("steps are always compiled", True),
    "eval_tf_while_loop": Declined(_CALLS, False),
    "allow_tpu_summary": Declined("steps write no summaries: what a train_step returns is logged", False),
    "preemption_on_demand_checkpoint": Declined("a run always saves its state when a stop is requested", True),
    "progressive": Declined("the task defines the stages: derive it from everstep.ProgressivePolicy"),
    "trainer_type": Declined("the task specifies how several tasks are trained: task.mode"),
    "task_sampler": Declined("the task specifies which of several tasks comes next: task.sampler"),
}
"""Keys of TF Model Garden that are not supported: the reason, and the values that have no effect anyway."""


@dataclasses.dataclass
class EarlyStoppingConfig(Config):
    """Stops training after a number of evaluations without improvement; off while `metric` is empty."""

    metric: str = ""
    """The evaluation metric that has to improve, such as `validation_loss`; `a|b` for a nested one."""
    mode: Literal["higher", "lower"] | None = None
    """Whether a higher or a lower value is better; required if `metric` is set."""
    patience: Annotated[int, Ge(1)] = 3
    """The number of evaluations in a row without improvement after which training stops."""
    min_delta: Annotated[float, Ge(0)] = 0.0
    """The minimum difference to the best value so far that counts as an improvement."""

    def _problems(self) -> Iterator[Problem]:
        if self.metric and self.mode is None:
            remedy = f"set whether a 'higher' or a 'lower' {self.metric} is better"
            yield Problem("mode", "is required with metric", received=None, remedy=remedy)


@dataclasses.dataclass
class TrainerConfig(Config):
    """Steps, intervals and the optimizer. All steps are absolute: a resumed run continues to count.

    An epoch has as many steps as the training data has batches.
    """

    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("train_steps", "epochs"),)
    _may_change: ClassVar[frozenset[str]] = frozenset(
        {"train_steps", "epochs", *INTERVALS, "checkpoint_seconds", "max_to_keep", "keep_steps", "keep_seconds"}
        | {"keep_ladder", "keep_best", "best_checkpoint_eval_metric", "best_checkpoint_metric_comp", "save_failure"}
        | {"best_checkpoint_export_subdir", "early_stopping"}
        | {"loss_upper_bound", "recovery_begin_steps", "recovery_max_trials"}
        | {"validation_steps", "validation_summary_subdir", "continuous_eval_timeout", "tracking", "profile"}
        | {"sanity_validation_steps", "stop_at"}
    )
    _declined: ClassVar[Mapping[str, Declined]] = _DECLINED

    optimizer_config: OptimizationConfig = dataclasses.field(default_factory=OptimizationConfig)
    """Optimizer, learning rate and warm-up."""
    train_steps: Annotated[int, Ge(1)] | None = 1000
    """The step at which training is done. None if `epochs` is set: setting one clears the other."""
    epochs: Annotated[float, Gt(0), Lt(math.inf)] | None = None
    """The number of passes over the training data, instead of `train_steps`; 2.5 ends in the middle of the third."""
    steps_per_loop: Interval = 100
    """The logging window, in steps or as `1 epoch`: after it metrics and means are reported and reset."""
    summary_interval: Interval | None = None
    """The interval of training logs, a multiple of steps_per_loop. None: every loop."""
    checkpoint_interval: Interval = 1000
    """Save at the first loop's end at or after each multiple of this. 0: only when training is done or interrupted."""
    checkpoint_seconds: Annotated[float, Gt(0)] | None = None
    """Save also at the first loop's end after this many seconds without a save."""
    max_to_keep: int = 5
    """How many of the newest checkpoints to keep, at least 2, in case one is damaged."""
    keep_steps: Annotated[int, Ge(1)] | None = None
    """Keep also, permanently, one checkpoint per this many steps."""
    keep_seconds: Annotated[float, Gt(0)] | None = None
    """Keep also, permanently, one checkpoint per this many seconds."""
    keep_ladder: Size | None = None
    """Keep also as many checkpoints as fit into these bytes, such as `2GB`, spread over the run."""
    keep_best: Annotated[int, Ge(0)] = 0
    """Keep also this many of the best checkpoints by `best_checkpoint_eval_metric`."""
    best_checkpoint_eval_metric: str = ""
    """The evaluation metric that decides which checkpoints are the best."""
    best_checkpoint_metric_comp: Literal["higher", "lower"] = "higher"
    """Whether a higher or a lower value of that metric is better."""
    best_checkpoint_export_subdir: str = ""
    """The folder in the run directory for the best weights by that metric, and `info.json`. Empty: none."""
    early_stopping: EarlyStoppingConfig = dataclasses.field(default_factory=EarlyStoppingConfig)
    """Whether to stop training once evaluations no longer improve."""
    train_actions: list[str | dict[str, Any]] = dataclasses.field(default_factory=list)
    """Actions called with the logs after each loop: registered names, or entries with a `_target_`."""
    eval_actions: list[str | dict[str, Any]] = dataclasses.field(default_factory=list)
    """Actions called with the logs after each evaluation: registered names, or entries with a `_target_`."""
    save_failure: Literal["stop", "continue"] = "stop"
    """What to do when a checkpoint cannot be written: stop the run, or continue and try again at the next one."""
    loss_upper_bound: Annotated[float, Gt(0)] = 1e6
    """A mean loss of a loop above this counts as divergence, like one that is not finite."""
    recovery_begin_steps: int = 0
    """The first step at which `loss_upper_bound` applies; a loss that is not finite always counts."""
    recovery_max_trials: Annotated[int, Ge(-1)] = 0
    """How often to roll back to the last good state and skip bad batches. 0: fail. -1: continue without saving."""
    validation_steps: int = -1
    """Batches per evaluation; -1 is the whole validation set, every sample once."""
    validation_interval: Interval = 1000
    """Steps between evaluations, or epochs, as `1 epoch`."""
    validation_summary_subdir: str = "validation"
    """Folder of the evaluation's TensorBoard events."""
    sanity_validation_steps: Annotated[int, Ge(0)] = 0
    """Batches to evaluate before the first step of a new run, so that errors there show at once. 0: none."""
    overfit_batches: Annotated[int, Ge(1)] | None = None
    """Train only on this many first batches, repeated in one order, and evaluate on them. None: on all."""
    continuous_eval_timeout: int = 3600
    """continuous_eval ends when no new checkpoint has appeared for this many seconds."""
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    """Trackers beside the console, `history.csv` and TensorBoard."""
    profile: str = ""
    """The steps to trace into `profile/`, as `200..220`; `auto`: some, once everything is compiled. Empty: none."""
    stop_at: str = ""
    """The time of day, as `07:00`, at which to save and end the run; the next attempt continues. Empty: none."""

    def with_learning_rate_length(self, train_steps: int | None = None) -> Self:
        """Returns the settings with a learning-rate schedule that ends with training, and the steps of its warmup.

        Those that are set in steps stay as they are.

        Args:
          train_steps: The number of training steps; by default `self.train_steps`.
        """
        steps = self.train_steps if train_steps is None else train_steps
        if steps is None or not self.optimizer_config.unset_lengths:
            return self
        new = self.replace()
        new.optimizer_config = self.optimizer_config.with_length(steps)
        return new

    def _problems(self) -> Iterator[Problem]:
        yield from [*_wrong_length(self), *_too_small(self), *wrong_multiples(self), *_wrong_retention(self)]
        yield from [*_wrong_export(self), *_wrong_actions(self), *_wrong_profile(self), *_wrong_time(self)]


def wrong_multiples(config: TrainerConfig) -> Iterator[Problem]:
    """Yields problems between intervals; those in epochs have to be converted to steps first."""
    every, loop = config.summary_interval, config.steps_per_loop
    if isinstance(every, int) and isinstance(loop, int) and loop > 0 and every % loop:
        yield Problem("summary_interval", f"must be a multiple of steps_per_loop ({loop})", received=every)


def _wrong_length(config: TrainerConfig) -> Iterator[Problem]:
    if config.train_steps is None and config.epochs is None:
        yield Problem("train_steps", "and epochs is None, too", received=None, remedy="set one of them")


def _wrong_retention(config: TrainerConfig) -> Iterator[Problem]:
    if config.max_to_keep < 2:
        reason = "must be at least 2, so that there is another one if the newest is damaged"
        yield Problem("max_to_keep", reason, received=config.max_to_keep)
    if config.keep_best and not config.best_checkpoint_eval_metric:
        remedy = "set best_checkpoint_eval_metric, too"
        yield Problem("keep_best", "but no metric is set", received=config.keep_best, remedy=remedy)


def _wrong_export(config: TrainerConfig) -> Iterator[Problem]:
    folder = config.best_checkpoint_export_subdir
    first = PurePath(folder).parts[:1]
    taken = {*_FOLDERS, config.validation_summary_subdir}
    if folder and (not first or PurePath(folder).is_absolute() or ".." in PurePath(folder).parts or first[0] in taken):
        reason = "expected a folder of its own in the run directory, such as 'best'"
        yield Problem("best_checkpoint_export_subdir", reason, received=folder)
    if folder and not config.best_checkpoint_eval_metric:
        reason = f"is empty, but best_checkpoint_export_subdir is {folder!r}"
        yield Problem("best_checkpoint_eval_metric", reason, remedy="set the metric that decides what is best")


def profiled_steps(profile: str) -> tuple[int, int] | None:
    """Returns the first and the last step of `200..220`; None for anything else."""
    match = _STEPS.fullmatch(profile)
    return (int(match[1]), int(match[2])) if match else None


def _wrong_profile(config: TrainerConfig) -> Iterator[Problem]:
    steps, end = profiled_steps(config.profile), config.train_steps
    if config.profile not in ("", "auto") and (steps is None or steps[0] >= steps[1]):
        yield Problem("profile", "expected steps, as '200..220', or 'auto', or nothing", received=config.profile)
    elif steps is not None and end is not None and steps[0] >= end:
        reason, remedy = f"but training ends at step {end}", "choose steps before it"
        yield Problem("profile", reason, received=config.profile, remedy=remedy)


def _wrong_time(config: TrainerConfig) -> Iterator[Problem]:
    if config.stop_at and not is_time_of_day(config.stop_at):
        yield Problem("stop_at", "expected a time of day, as '07:00', or nothing", received=config.stop_at)


def _wrong_actions(config: TrainerConfig) -> Iterator[Problem]:
    for name in ("train_actions", "eval_actions"):
        for index, entry in enumerate(getattr(config, name)):
            if not isinstance(entry, str) and "_target_" not in entry:
                reason = "expected a registered name, or keys with a _target_"
                yield Problem(f"{name}[{index}]", reason, received=entry)


def _too_small(config: TrainerConfig) -> Iterator[Problem]:
    intervals = {"steps_per_loop": 1, "summary_interval": 0, "checkpoint_interval": 0, "validation_interval": 1}
    for name, least in intervals.items():
        value = getattr(config, name)  # in steps, or text in epochs
        if isinstance(value, int) and value < least:
            yield Problem(name, f"must be at least {least}", received=value)
    if config.validation_steps < 1 and config.validation_steps != -1:
        reason = "must be at least 1, or -1 for the whole validation set"
        yield Problem("validation_steps", reason, received=config.validation_steps)


def in_steps(config: _AnyTrainerConfig, batches_per_epoch: int | None, counting: bool = False) -> _AnyTrainerConfig:
    """Returns the same settings with all intervals in steps; the same object where they are already.

        in_steps(TrainerConfig(epochs=3, validation_interval="0.5 epochs"), batches_per_epoch=10)
        # TrainerConfig(train_steps=30, epochs=None, validation_interval=5, …)

    Args:
      config: The trainer's section; not changed.
      batches_per_epoch: The number of steps of an epoch; None if it is unknown.
      counting: Whether the first epoch will count them. Then `epochs` stays, and what is due once an epoch is due at
        the end of every window, because each window is an epoch.

    Raises:
      UsageError: Something is specified in epochs and their length is unknown, or the intervals do not fit together.
    """
    given = _in_epochs(config)
    if batches_per_epoch is None and given and counting:
        return config.replace(**dict.fromkeys(set(given) - {"epochs"}, 1))
    if batches_per_epoch is None and given:
        raise UsageError([_length_unknown(name, getattr(config, name)) for name in given])
    steps = {name: max(1, round(epochs * (batches_per_epoch or 0))) for name, epochs in given.items()}
    total = {"train_steps": steps.pop("epochs")} if "epochs" in steps else {}
    new = config.replace(**steps, **total) if given else config
    problems = [_with_length(problem, batches_per_epoch) for problem in wrong_multiples(new)]
    if problems:
        raise UsageError(problems)
    return new


def _in_epochs(config: TrainerConfig) -> dict[str, float]:
    """Returns the fields that are specified in epochs, and how many epochs."""
    lengths = {"epochs": config.epochs} | {name: epochs_in(getattr(config, name)) for name in INTERVALS}
    return {name: epochs for name, epochs in lengths.items() if epochs is not None}


def _with_length(problem: Problem, batches_per_epoch: int | None) -> Problem:
    problem = problem.under("trainer")
    return dataclasses.replace(problem, reason=f"{problem.reason}; an epoch is {batches_per_epoch} steps")


def _length_unknown(name: str, value: object) -> Problem:
    return Problem(
        f"trainer.{name}",
        "but the training data does not say how many batches an epoch has",
        received=in_few_digits(value) if isinstance(value, float) else value,
        remedy="specify steps, as {steps}=1000",
        mentions={"steps": "trainer.train_steps" if name == "epochs" else f"trainer.{name}"},
    )


def in_few_digits(epochs: float) -> float:
    """Returns the number of epochs as people write it: 2 for 2.0."""
    return int(epochs) if epochs == int(epochs) else epochs


@dataclasses.dataclass
class ProgressiveTrainerConfig(TrainerConfig):
    """The settings of a run in stages: those of any trainer, and which copies of the model to export."""

    _may_change: ClassVar[frozenset[str]] = TrainerConfig._may_change | {
        "export_checkpoint",
        "export_checkpoint_interval",
        "export_max_to_keep",
        "export_only_final_stage_ckpt",
    }

    export_checkpoint: bool = True
    """Whether to write copies of the model alone into `exported_ckpts`, for runs without stages."""
    export_checkpoint_interval: Annotated[int, Ge(0)] | None = None
    """Steps between copies, each written at the first loop's end at or after a multiple; 0: only the last one. None:
    `checkpoint_interval`. The model at the end of training is always copied."""
    export_max_to_keep: Annotated[int, Ge(1)] | None = None
    """How many of the newest copies to keep, at least 1; None: `max_to_keep`."""
    export_only_final_stage_ckpt: bool = True
    """Whether only models of the last stage are copied."""
