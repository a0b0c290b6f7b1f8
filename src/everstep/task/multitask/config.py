"""`MultiTaskConfig`: the tasks that are trained together, and how often each. Imports no Keras."""

import dataclasses
import math
import re
from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Lt

from everstep.config import Config, OneOfConfig
from everstep.data import DataConfig
from everstep.errors import Problem
from everstep.task.config import TaskConfig

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_FINAL_EXPONENT = 0.2  # of the annealing sampler, as in its publication


@dataclasses.dataclass
class UniformConfig(Config):
    """Every task equally often."""

    def exponent(self, step: int) -> float:
        """Returns the power of the weights that tasks are drawn by at a step."""
        return 0.0


@dataclasses.dataclass
class ProportionalConfig(Config):
    """By weight: with a probability proportional to `task_weight ** alpha`."""

    alpha: float = 1.0
    """Below 1, tasks of low weight are drawn more often than by weight; 0 is uniform."""

    def exponent(self, step: int) -> float:
        """Returns the power of the weights that tasks are drawn by at a step."""
        return self.alpha


@dataclasses.dataclass
class AnnealingConfig(Config):
    """From proportional towards uniform: alpha falls from 1, epoch by epoch, to 0.2 in the last, and stays there."""

    steps_per_epoch: Annotated[int, Ge(1)] = 5
    """Steps with the same alpha."""
    total_steps: Annotated[int, Ge(1)] = 20
    """The step at which the last epoch ends."""

    def exponent(self, step: int) -> float:
        """Returns the power of the weights that tasks are drawn by at a step."""
        epochs = self.total_steps / self.steps_per_epoch
        done = min(1.0, (step // self.steps_per_epoch) / (epochs - 1)) if epochs > 1 else 1.0
        return 1.0 - (1.0 - _FINAL_EXPONENT) * done


@dataclasses.dataclass
class SamplerConfig(OneOfConfig):
    """How the task of each step is drawn, if tasks are trained in turn."""

    type: str | None = "proportional"
    """`uniform`, `proportional` or `annealing`."""
    uniform: UniformConfig = dataclasses.field(default_factory=UniformConfig)
    """Equally often."""
    proportional: ProportionalConfig = dataclasses.field(default_factory=ProportionalConfig)
    """By weight."""
    annealing: AnnealingConfig = dataclasses.field(default_factory=AnnealingConfig)
    """By weight at first, more equally later."""


@dataclasses.dataclass
class TaskRoutine(Config):
    """One of the tasks."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"eval_steps"})

    task_name: str = ""
    """The name of the task, of its output of the model, and the prefix of its metrics. Required."""
    task_config: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    """The configuration of the task, of a class for which a task is registered."""
    eval_steps: int | None = None
    """Batches per evaluation. None: the whole validation set. 0: the task is not evaluated."""
    task_weight: Annotated[float, Ge(0), Lt(math.inf)] = 1.0
    """The weight of its draws if tasks are trained in turn, or of its loss in joint training. 0: it is not trained."""

    def _problems(self) -> Iterator[Problem]:
        if self.eval_steps is not None and self.eval_steps < 0:
            text = "must be at least 0, or null for the whole validation set"
            yield Problem("eval_steps", text, received=self.eval_steps)


@dataclasses.dataclass
class MultiTaskConfig(TaskConfig):
    """Several tasks that share one model.

    The data sections are those of the tasks. Of the two sections here only `seed` and `limit_batches` are read. The
    seed, if set, determines the order of all training data and the task of each step; the limit applies to each task
    that sets none.
    """

    task_routines: list[TaskRoutine] = dataclasses.field(default_factory=list)
    """The tasks."""
    mode: Literal["interleaving", "joint"] = "interleaving"
    """interleaving: each step trains one task, drawn by `sampler`; joint: all tasks, on the weighted sum of losses."""
    sampler: SamplerConfig = dataclasses.field(default_factory=SamplerConfig)
    """How the task of each step is drawn; read only in interleaving mode."""

    def _problems(self) -> Iterator[Problem]:
        yield from self._wrong_routines()
        if self.mode == "interleaving" and self.sampler.type is None:
            yield Problem("sampler.type", "expected uniform, proportional or annealing", received=None)
        yield from self._unread_data()

    def _wrong_routines(self) -> Iterator[Problem]:
        if not any(routine.task_weight > 0 for routine in self.task_routines):
            yield Problem("task_routines", "has no task to train", remedy="add one with a task_weight above 0")
        names = [routine.task_name for routine in self.task_routines]
        for index, routine in enumerate(self.task_routines):
            where = f"task_routines[{index}]"
            if not _NAME.fullmatch(routine.task_name):
                text = "expected letters, digits, '_', '.' and '-'"
                yield Problem(f"{where}.task_name", text, received=routine.task_name)
            if routine.task_name in names[:index]:
                text = "another task has this name"
                yield Problem(f"{where}.task_name", text, received=routine.task_name, remedy="choose another name")

    def _unread_data(self) -> Iterator[Problem]:
        for section in ("train_data", "validation_data"):
            data: DataConfig = getattr(self, section)
            cache = data.cache or "auto"  # a file of Model Garden has false
            if data.replace(seed=None, is_training=None, limit_batches=None, cache=cache) != DataConfig():
                remedy = f"set task_routines[0].task_config.{section}, and so on, instead"
                yield Problem(section, "only seed and limit_batches are read", remedy=remedy)
