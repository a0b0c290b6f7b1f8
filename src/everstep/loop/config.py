"""How long to train, and what happens on the way."""

import dataclasses
import math
import numbers
import re
from collections.abc import Iterator, Mapping
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, Self

import pydantic

from everstep.config import Config, ConfigError, Problem
from everstep.config.declined import Declined
from everstep.config.problem import show
from everstep.loop.declined import DECLINED
from everstep.loop.stopping_config import EarlyStoppingConfig
from everstep.optim.config import OptimizationConfig
from everstep.tracking.config import TrackingConfig

_EPOCHS = re.compile(r"([0-9]+(?:\.[0-9]+)?) epochs?")
_STEPS = re.compile(r"([0-9]{1,15})\.\.([0-9]{1,15})")


def epochs_in(interval: Any) -> float | None:
    """Returns the epochs that an interval such as `0.5 epochs` is given in; None for one in steps."""
    match = _EPOCHS.fullmatch(interval) if isinstance(interval, str) else None
    return float(match[1]) if match else None


def _checked_form(value: Any) -> Any:
    """Returns an interval as it is: what is wrong with it is better said with both of its forms."""
    whole = isinstance(value, numbers.Integral) or (isinstance(value, float) and value.is_integer())
    if (whole and not isinstance(value, bool)) or epochs_in(value):
        return value
    text = f"received {show(value)} ({type(value).__name__}), expected steps, as 500, or epochs, as '0.5 epochs'"
    raise ConfigError([Problem("", text)])


Interval = Annotated[
    int | str,
    pydantic.BeforeValidator(_checked_form),
    pydantic.WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": f"^{_EPOCHS.pattern}$"}]}),
]
"""Steps as a number, or epochs as text: `1 epoch`, `0.5 epochs`. `in_steps` makes steps of both."""

_FOLDERS = (  # of a run directory
    *("checkpoints", "ema_checkpoints", "export", "exported_ckpts", "profile", "samples", "spool", "train", "wandb"),
)

INTERVALS = ("steps_per_loop", "summary_interval", "checkpoint_interval", "validation_interval")
"""The fields that may be given in epochs."""


@dataclasses.dataclass
class TrainerConfig(Config):
    """Steps, intervals and the optimizer. All steps are absolute: a resumed run does not start to count anew.

    An epoch is as many steps as the training data has batches, where it says how many.
    """

    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("train_steps", "epochs"),)
    _may_change: ClassVar[frozenset[str]] = frozenset(
        {"train_steps", "epochs", *INTERVALS, "checkpoint_seconds", "max_to_keep", "keep_steps", "keep_seconds"}
        | {"keep_best", "best_checkpoint_eval_metric", "best_checkpoint_metric_comp", "save_failure"}
        | {"best_checkpoint_export_subdir", "early_stopping"}
        | {"loss_upper_bound", "recovery_begin_steps", "recovery_max_trials"}
        | {"validation_steps", "validation_summary_subdir", "continuous_eval_timeout", "tracking", "profile"}
        | {"sanity_validation_steps"}
    )
    _declined: ClassVar[Mapping[str, Declined]] = DECLINED

    optimizer_config: OptimizationConfig = dataclasses.field(default_factory=OptimizationConfig)
    """Optimizer, learning rate and warm-up."""
    train_steps: int | None = 1000
    """The step at which training is done. None where `epochs` says it: setting one clears the other."""
    epochs: float | None = None
    """How often training goes through its data, in place of `train_steps`; 2.5 ends in the middle of the third time."""
    steps_per_loop: Interval = 100
    """The logging window, in steps or as `1 epoch`: metrics and means are reported, and start anew, after it."""
    summary_interval: Interval | None = None
    """Record training logs only this often, a multiple of steps_per_loop. None: every loop."""
    checkpoint_interval: Interval = 1000
    """Save at the first loop's end at or after each multiple of this. 0: only when training is done or interrupted."""
    checkpoint_seconds: float | None = None
    """Save also at the first loop's end after so many seconds without a save."""
    max_to_keep: int = 5
    """How many of the newest checkpoints to keep, at least 2: one of them may be damaged one day."""
    keep_steps: int | None = None
    """Keep also, for good, one checkpoint for every so many steps."""
    keep_seconds: float | None = None
    """Keep also, for good, one checkpoint for every so many seconds."""
    keep_best: int = 0
    """Keep also so many of the best checkpoints by `best_checkpoint_eval_metric`."""
    best_checkpoint_eval_metric: str = ""
    """The evaluation metric that tells which checkpoints are the best."""
    best_checkpoint_metric_comp: Literal["higher", "lower"] = "higher"
    """Whether a higher or a lower value of that metric is better."""
    best_checkpoint_export_subdir: str = ""
    """Where in the run directory to keep the weights that were best by that metric, and `info.json`. Empty: nowhere."""
    early_stopping: EarlyStoppingConfig = dataclasses.field(default_factory=EarlyStoppingConfig)
    """Whether to end training once evaluations no longer get better."""
    train_actions: list[str | dict[str, Any]] = dataclasses.field(default_factory=list)
    """What to call with the logs after each loop: registered names, or entries with a `_target_`."""
    eval_actions: list[str | dict[str, Any]] = dataclasses.field(default_factory=list)
    """What to call with the logs after each evaluation: registered names, or entries with a `_target_`."""
    save_failure: Literal["stop", "continue"] = "stop"
    """What to do when a checkpoint cannot be written: stop the run, or train on and try again at the next one."""
    loss_upper_bound: float = 1e6
    """A mean loss above this, over a loop, is treated as one that is not finite."""
    recovery_begin_steps: int = 0
    """The step from which on `loss_upper_bound` counts; a loss that is not finite always does."""
    recovery_max_trials: int = 0
    """How often to go back to the last good state and leave out what did the harm. 0: stop. -1: train on, unsaved."""
    validation_steps: int = -1
    """Batches per evaluation; -1 is the whole validation set, every sample once."""
    validation_interval: Interval = 1000
    """Steps between evaluations, or epochs, as `1 epoch`."""
    validation_summary_subdir: str = "validation"
    """Folder of the evaluation's TensorBoard events."""
    sanity_validation_steps: int = 0
    """Batches to evaluate before the first step of a new run, so that what is wrong there shows at once. 0: none."""
    overfit_batches: int | None = None
    """Train on the first so many batches alone, again and again in one order, and evaluate on them. None: on all."""
    continuous_eval_timeout: int = 3600
    """continuous_eval ends when no new checkpoint has come for so many seconds."""
    tracking: TrackingConfig = dataclasses.field(default_factory=TrackingConfig)
    """Where numbers go beside the console, `history.csv` and TensorBoard."""
    profile: str = ""
    """Of which steps to keep a trace in `profile/`, as `200..220`; `auto`: a few, once all is compiled. Empty: none."""

    def with_schedule(self, train_steps: int | None = None) -> Self:
        """Returns the settings with a learning rate that ends with training, where nobody has set its length.

        Args:
          train_steps: How long training is; by default as these settings say, if they say it in steps.
        """
        steps = self.train_steps if train_steps is None else train_steps
        if steps is None or self.optimizer_config.open_length is None:
            return self
        new = self.replace()
        new.optimizer_config = self.optimizer_config.with_length(steps)
        return new

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        problems = [*_wrong_length(self), *_too_small(self), *wrong_multiples(self), *_wrong_retention(self)]
        problems += [*_wrong_export(self), *_wrong_actions(self), *_wrong_profile(self)]
        if problems:
            raise ConfigError(problems)


def wrong_multiples(config: TrainerConfig) -> Iterator[Problem]:
    """Yields what is wrong between intervals; those in epochs have to be made steps first."""
    every, loop = config.summary_interval, config.steps_per_loop
    if isinstance(every, int) and isinstance(loop, int) and loop > 0 and every % loop:
        yield Problem("summary_interval", f"received {every}, must be a multiple of steps_per_loop ({loop})")


def _wrong_length(config: TrainerConfig) -> Iterator[Problem]:
    if config.train_steps is None and config.epochs is None:
        yield Problem("train_steps", "received None, and epochs is None as well: set one of them")
    if config.epochs is not None and not 0 < config.epochs < math.inf:
        yield Problem("epochs", f"received {config.epochs}, must be more than 0")


def _wrong_retention(config: TrainerConfig) -> Iterator[Problem]:
    if config.max_to_keep < 2:
        reason = "with a single checkpoint there is nothing to fall back on when it is damaged"
        yield Problem("max_to_keep", f"received {config.max_to_keep}, must be at least 2: {reason}")
    if config.keep_best and not config.best_checkpoint_eval_metric:
        yield Problem("keep_best", f"received {config.keep_best}, but best_checkpoint_eval_metric does not say by what")


def _wrong_export(config: TrainerConfig) -> Iterator[Problem]:
    folder = config.best_checkpoint_export_subdir
    first = PurePath(folder).parts[:1]
    taken = {*_FOLDERS, config.validation_summary_subdir}
    if folder and (not first or PurePath(folder).is_absolute() or ".." in PurePath(folder).parts or first[0] in taken):
        text = f"received {folder!r}, expected a folder of its own in the run directory, such as 'best'"
        yield Problem("best_checkpoint_export_subdir", text)
    if folder and not config.best_checkpoint_eval_metric:
        text = f"is empty, but best_checkpoint_export_subdir is {folder!r}: name the metric that tells what is best"
        yield Problem("best_checkpoint_eval_metric", text)


def profiled_steps(profile: str) -> tuple[int, int] | None:
    """Returns the steps that `200..220` means; None for anything else."""
    match = _STEPS.fullmatch(profile)
    return (int(match[1]), int(match[2])) if match else None


def _wrong_profile(config: TrainerConfig) -> Iterator[Problem]:
    steps, end = profiled_steps(config.profile), config.train_steps
    if config.profile not in ("", "auto") and (steps is None or steps[0] >= steps[1]):
        text = f"received {config.profile!r}, expected steps, as '200..220', or 'auto', or nothing"
        yield Problem("profile", text)
    elif steps is not None and end is not None and steps[0] >= end:
        yield Problem("profile", f"received {config.profile!r}, but training ends at step {end}: name steps before it")


def _wrong_actions(config: TrainerConfig) -> Iterator[Problem]:
    for name in ("train_actions", "eval_actions"):
        for index, entry in enumerate(getattr(config, name)):
            if not isinstance(entry, str) and "_target_" not in entry:
                text = f"received {show(entry)}, expected a registered name, or keys with a _target_"
                yield Problem(f"{name}[{index}]", text)


def _too_small(config: TrainerConfig) -> Iterator[Problem]:
    least = {"train_steps": 1, "steps_per_loop": 1, "summary_interval": 0, "checkpoint_interval": 0}
    least |= {"validation_interval": 1, "keep_best": 0, "keep_steps": 1, "recovery_max_trials": -1}
    least |= {"sanity_validation_steps": 0, "overfit_batches": 1}
    for name, bound in least.items():
        value = getattr(config, name)
        if isinstance(value, int) and value < bound:
            yield Problem(name, f"received {value}, must be at least {bound}")
    for name in ("checkpoint_seconds", "keep_seconds", "loss_upper_bound"):
        value = getattr(config, name)
        if value is not None and not value > 0:
            yield Problem(name, f"received {value}, must be more than 0")
    if config.validation_steps < 1 and config.validation_steps != -1:
        text = f"received {config.validation_steps}, must be at least 1, or -1 for the whole validation set"
        yield Problem("validation_steps", text)
