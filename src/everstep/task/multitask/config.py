"""What is trained together, how, and how often each. Imports no Keras."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import ClassVar, Literal

from everstep.config import Config, OneOfConfig
from everstep.data.config import DataConfig
from everstep.errors import Problem, UsageError
from everstep.task.config import TaskConfig

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_FINAL_EXPONENT = 0.2  # of the annealing sampler, as published with it


@dataclasses.dataclass
class UniformConfig(Config):
    """Every task equally often."""

    def exponent(self, step: int) -> float:
        """Returns the power of the weights that tasks are drawn by at a step."""
        return 0.0


@dataclasses.dataclass
class ProportionalConfig(Config):
    """As often as the weights say: with probability `task_weight ** alpha`, divided by the sum of those."""

    alpha: float = 1.0
    """Below 1, tasks of low weight come more often than their weight says; 0 is uniform."""

    def exponent(self, step: int) -> float:
        """Returns the power of the weights that tasks are drawn by at a step."""
        return self.alpha


@dataclasses.dataclass
class AnnealingConfig(Config):
    """From proportional towards uniform: alpha falls from 1, epoch by epoch, to 0.2 in the last one; there it stays."""

    steps_per_epoch: int = 5
    """Steps with the same alpha."""
    total_steps: int = 20
    """The step at which the last epoch is over."""

    def exponent(self, step: int) -> float:
        """Returns the power of the weights that tasks are drawn by at a step."""
        epochs = self.total_steps / self.steps_per_epoch
        done = min(1.0, (step // self.steps_per_epoch) / (epochs - 1)) if epochs > 1 else 1.0
        return 1.0 - (1.0 - _FINAL_EXPONENT) * done

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        low = {name: value for name, value in self.as_dict().items() if value < 1}
        if low:
            raise UsageError([Problem(name, "must be at least 1", received=value) for name, value in low.items()])


@dataclasses.dataclass
class SamplerConfig(OneOfConfig):
    """Which task a step trains, where they are trained in turn."""

    type: str | None = "proportional"
    """`uniform`, `proportional` or `annealing`."""
    uniform: UniformConfig = dataclasses.field(default_factory=UniformConfig)
    """Equally often."""
    proportional: ProportionalConfig = dataclasses.field(default_factory=ProportionalConfig)
    """By weight."""
    annealing: AnnealingConfig = dataclasses.field(default_factory=AnnealingConfig)
    """By weight at first, more and more equally later."""


@dataclasses.dataclass
class TaskRoutine(Config):
    """One of the tasks."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"eval_steps"})

    task_name: str = ""
    """Its name: of the model's output, and in front of its metrics. Required."""
    task_config: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    """Its own configuration, of a class that a task is registered for."""
    eval_steps: int | None = None
    """Batches per evaluation. None: the whole validation set. 0: it is not evaluated."""
    task_weight: float = 1.0
    """Its share: of the draws where tasks are trained in turn, of the loss in joint training. 0: it is not trained."""


@dataclasses.dataclass
class MultiTaskConfig(TaskConfig):
    """Several tasks that share one model.

    Data sections are those of the tasks. Of the two here only `seed` and `limit_batches` are read. The seed decides,
    where it is set, the order of all training data and which task a step trains; the limit is that of each task which
    sets none of its own.
    """

    task_routines: list[TaskRoutine] = dataclasses.field(default_factory=list)
    """The tasks."""
    mode: Literal["interleaving", "joint"] = "interleaving"
    """Each step trains one task, drawn by `sampler`; or all of them, on the weighted sum of their losses."""
    sampler: SamplerConfig = dataclasses.field(default_factory=SamplerConfig)
    """Which task a step trains; read in interleaving mode alone."""

    def validate(self) -> None:
        """Checks names and numbers, and that nothing is set that is not read.

        Raises:
          UsageError: Names the key.
        """
        super().validate()
        problems = [*self._wrong_routines(), *self._wrong_choice(), *self._unread_data()]
        if problems:
            raise UsageError(problems)

    def _wrong_routines(self) -> Iterator[Problem]:
        if not any(routine.task_weight > 0 for routine in self.task_routines):
            yield Problem("task_routines", "has no task to train", remedy="add one whose task_weight is above 0")
        names = [routine.task_name for routine in self.task_routines]
        for index, routine in enumerate(self.task_routines):
            where = f"task_routines[{index}]"
            if not _NAME.fullmatch(routine.task_name):
                text = "expected letters, digits, '_', '.' and '-'"
                yield Problem(f"{where}.task_name", text, received=routine.task_name)
            if routine.task_name in names[:index]:
                text = "another task has this name"
                yield Problem(f"{where}.task_name", text, received=routine.task_name, remedy="choose another")
            if not 0 <= routine.task_weight < math.inf:
                yield Problem(f"{where}.task_weight", "must be at least 0", received=routine.task_weight)
            if routine.eval_steps is not None and routine.eval_steps < 0:
                text = "must be at least 0, or null for the whole validation set"
                yield Problem(f"{where}.eval_steps", text, received=routine.eval_steps)

    def _wrong_choice(self) -> Iterator[Problem]:
        if self.mode == "interleaving" and self.sampler.type is None:
            yield Problem("sampler.type", "expected uniform, proportional or annealing", received=None)

    def _unread_data(self) -> Iterator[Problem]:
        for section in ("train_data", "validation_data"):
            data: DataConfig = getattr(self, section)
            if data.replace(seed=None, is_training=None, limit_batches=None) != DataConfig():
                remedy = f"set task_routines[0].task_config.{section}, and so on, instead"
                yield Problem(section, "is not read, but for seed and limit_batches", remedy=remedy)
