"""The variables that an experiment will have, collected without giving a value to the large ones."""

from typing import Any

import keras

from everstep.engine import SMALL, without_values
from everstep.errors import UsageError
from everstep.loop.progressive import is_progressive
from everstep.loop.trainer import Trainer
from everstep.loop.trainer_creation import create_trainer
from everstep.task import Task


def planned_variables(params: Any, task: Task) -> dict[str, keras.Variable]:
    """Returns the variables of a training run by key; those of `SMALL` elements and more have no value.

    Model, optimizer and steps are built as for training, on the shapes of the first batches.

    Args:
      params: An ExperimentConfig.
      task: The task.

    Raises:
      UsageError: The experiment cannot be built, or is trained in stages, each of which has its own variables.
    """
    if is_progressive(task):
        raise UsageError("the task is trained in stages, each of which has its own variables")
    with without_values(SMALL):
        return create_trainer(params, task, train=True, evaluate=True, trainer_cls=_PlannedTrainer).engine.variables


class _PlannedTrainer(Trainer):
    """A trainer whose variables are known; it cannot train."""

    def _build(self, train_dataset: Any, validation_dataset: Any) -> None:
        self._prepare(train_dataset, validation_dataset)
        self.engine = self._new_engine()
        self.engine.collect(self.train_example, self._validation_example)
