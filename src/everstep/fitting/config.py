"""What `fit` was told, as the configuration of an experiment."""

import dataclasses
from typing import Any

from everstep.data.config import DataConfig
from everstep.fitting.arguments import Counts
from everstep.fitting.samples import samples_in
from everstep.loop.config import TrainerConfig
from everstep.loop.epoch_lengths import EpochLengths
from everstep.loop.per_epoch import per_epoch
from everstep.task.config import TaskConfig
from everstep.task.description import Description


@dataclasses.dataclass
class FitConfig(TaskConfig):
    """What `fit` is told about data and model: a run that goes on has to be told the same."""

    optimizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of the model's optimizer, as it was compiled."""
    loss: str = ""
    """The model's loss, or those of its outputs; a function by its name."""
    loss_weights: str = ""
    """What the loss of each output is multiplied by."""
    shuffle: bool = True
    """Whether arrays are shuffled."""
    class_weight: dict[int, float] | None = None
    """Weight of each class in the loss."""


def task_params(
    told: Description, counts: Counts, data: Any, held_out: Any, shuffle: bool, class_weight: dict[int, float] | None
) -> FitConfig:
    """Returns the task's section: what a run that goes on has to be told again."""
    size = counts.size(samples_in(data))
    return FitConfig(
        model=told.model,
        optimizer=told.optimizer,
        loss=told.loss,
        loss_weights=told.loss_weights,
        train_data=data_params(size, True),
        validation_data=data_params(size if held_out is None else counts.validation_size(samples_in(held_out)), False),
        shuffle=shuffle,
        class_weight=class_weight,
    )


def data_params(batch_size: int, training: bool) -> DataConfig:
    """Returns how arrays are read."""
    return DataConfig(global_batch_size=batch_size, is_training=training, drop_remainder=False)


def trainer_params(counts: Counts, lengths: EpochLengths, validation_freq: Any, keep: bool) -> TrainerConfig:
    """Returns the trainer's section: windows, evaluations and checkpoints at the ends of epochs."""
    every = 1 if isinstance(validation_freq, list | tuple) else int(validation_freq)
    others: dict[str, Any] = {"validation_steps": -1 if counts.evaluation_steps is None else counts.evaluation_steps}
    steps = lengths.length
    if steps is None:  # the first epoch will tell
        others |= {"validation_interval": f"{every} epochs", "checkpoint_interval": "1 epoch" if keep else 0}
        return per_epoch(counts.epochs, None, **others)
    others |= {"validation_interval": steps * every, "checkpoint_interval": steps if keep else 0}
    return per_epoch(counts.epochs, steps, train_steps=lengths.begin(counts.epochs), **others)
