"""What a job tells the loop of itself: a job that goes on has to be told the same."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from everstep.data.config import DataConfig
from everstep.engine.config import RuntimeConfig
from everstep.experiment_config import ExperimentConfig
from everstep.loop.config import TrainerConfig
from everstep.loop.per_epoch import per_epoch
from everstep.task.config import TaskConfig
from everstep.task.description import Description


@dataclasses.dataclass
class TrainingConfig(TaskConfig):
    """The model as it was compiled, and what decides on its batches."""

    _may_change: ClassVar[frozenset[str]] = frozenset({"init_checkpoint", "validation_data", "name", "valid_records"})

    optimizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of the optimizer."""
    loss: str = ""
    """The loss, or those of the outputs; a function by its name."""
    loss_weights: str = ""
    """What the loss of each output is multiplied by."""
    train_records: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Of TFRecord data: the files, the percentage, the batch, the seed."""
    valid_records: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The same of the validation data."""
    steps_per_epoch: int = 0
    """How many batches an epoch has: epochs are counted by it."""


def experiment_config(
    told: Description, epochs: int, steps: int, validation_steps: int | None, seed: int, records: Mapping[str, Any]
) -> ExperimentConfig:
    """Returns the loop's configuration.

    Args:
      told: What the compiled model says of itself.
      epochs: How many in all.
      steps: Batches per epoch.
      validation_steps: Batches per evaluation; None for all.
      seed: Of everything.
      records: `train_records` and `valid_records`.
    """
    data = DataConfig(drop_remainder=False)
    task = TrainingConfig(
        model=told.model,
        optimizer=told.optimizer,
        loss=told.loss,
        loss_weights=told.loss_weights,
        train_data=data,
        validation_data=data,
        steps_per_epoch=steps,
        **records,
    )
    return ExperimentConfig(
        task=task, trainer=_trainer(epochs, steps, validation_steps), runtime=RuntimeConfig(seed=seed)
    )


def _trainer(epochs: int, steps: int, validation_steps: int | None) -> TrainerConfig:
    evaluated = -1 if validation_steps is None else validation_steps
    # A loss that is not finite ends the job, and nothing of it is saved.
    return per_epoch(epochs, steps, validation_steps=evaluated, recovery_max_trials=0)
