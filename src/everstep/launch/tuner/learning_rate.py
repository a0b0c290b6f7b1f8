"""A range of learning rates, tried on the first steps of training."""

from typing import Any

import keras
from keras import ops

from everstep.data import nest
from everstep.errors import UsageError
from everstep.experiment_config import ExperimentConfig
from everstep.launch.tuner.joining import joined
from everstep.launch.tuner.rates import RangeTest, geometric
from everstep.loop.progressive import ProgressiveTrainer, is_progressive
from everstep.loop.trainer import Trainer
from everstep.task.optim.ema import find_average
from everstep.task.task import Task


class Growing(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate that is multiplied by the same factor at every step."""

    def __init__(self, least: float, most: float, steps: int) -> None:
        self.least, self.most, self.steps = least, most, steps

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        share = ops.cast(step, "float32") / float(self.steps - 1)
        return self.least * ops.exp(share * ops.log(ops.cast(self.most / self.least, "float32")))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {"least": self.least, "most": self.most, "steps": self.steps}


def range_test(params: ExperimentConfig, task: Task, least: float, most: float, steps: int) -> RangeTest:
    """Trains from the initial weights, at a learning rate that grows from step to step; ends where the loss diverges.

    The schedule takes the place of the one that the optimizer has, inside the compiled step, whatever the optimizer is
    wrapped in. A task that is trained in stages stays in its first.

    Args:
      params: The experiment's configuration.
      task: Its task.
      least: The first learning rate.
      most: The last.
      steps: How many there are.

    Raises:
      UsageError: The configuration cannot be used, or the task has optimizers of its own.
    """
    base = ProgressiveTrainer if is_progressive(task) else Trainer
    kind = type("RangeTrainer", (_Ranging, base), {"schedule": Growing(least, most, steps)})
    with joined(params, task, evaluate=False, trainer_cls=kind) as trainer:
        _require_one_optimizer(task)
        _initialize(trainer)
        test = RangeTest()
        for rate in geometric(least, most, steps):
            test.add(rate, _loss(trainer))
            if test.diverged:
                break
        return test


class _Ranging:
    """Makes a trainer's optimizer follow another schedule, before anything is built of it."""

    schedule: Growing
    optimizer: Any

    def _join(self, *data: Any) -> None:
        innermost = self.optimizer
        while getattr(innermost, "inner_optimizer", None) is not None:
            innermost = innermost.inner_optimizer
        innermost.learning_rate = self.schedule
        super()._join(*data)  # type: ignore[misc]


def _require_one_optimizer(task: Task) -> None:
    own = [name for name, value in vars(task).items() if any(map(_is_optimizer, nest.flatten([value])))]
    if own:
        raise UsageError(
            f"{type(task).__name__}.{own[0]}: the task has optimizers of its own beside the configured one, and one "
            "range of learning rates would say nothing about several of them; try values for each"
        )


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


def _initialize(trainer: Trainer) -> None:
    """Gives the model its initial weights, as a new run does."""
    trainer.task.initialize(trainer.model)
    if (average := find_average(trainer.optimizer)) is not None:
        average.start()
    trainer.engine.pull()


def _loss(trainer: Trainer) -> float:
    """Trains one step; returns the loss it has seen."""
    return float(Trainer.train(trainer, 1)["training_loss"])  # that of a ProgressiveTrainer would leave the stage
