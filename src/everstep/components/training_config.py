"""What a run tells the loop of itself: a run that goes on has to be told the same."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from everstep.components.config_file import DESCRIPTIONS
from everstep.components.config_struct import ConfigStruct
from everstep.data.config import DataConfig
from everstep.engine.config import RuntimeConfig
from everstep.experiment_config import ExperimentConfig
from everstep.loop.per_epoch import per_epoch
from everstep.task.config import TaskConfig
from everstep.task.description import Description

_MAY_CHANGE = ("epochs", "project_name", "data_dir", "evaluator_class", "evaluator", "seed", *DESCRIPTIONS)
"""Keys of a project's configuration that alter nothing in its training; the seed is the runtime's."""

TASK_PATH = "task.project"
"""Where the loop's configuration has the project's."""


@dataclasses.dataclass
class ComponentsConfig(TaskConfig):
    """The model as it was compiled, and the project's configuration as far as it may alter a step."""

    optimizer: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of the model's optimizer, as it was compiled."""
    loss: str = ""
    """The model's loss, or those of its outputs; a function by its name."""
    loss_weights: str = ""
    """What the loss of each output is multiplied by."""
    class_weight: dict[int, float] | None = None
    """Weight of each class in the loss."""
    project: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The project's configuration, without what alters no step."""


def training_values(config: ConfigStruct) -> dict[str, Any]:
    """Returns the values that may alter what training leaves behind; keys that are not set are left out."""
    return _set_only({key: value for key, value in config.as_dict().items() if key not in _MAY_CHANGE})


def loop_keys(config: ConfigStruct, keys: Iterable[str]) -> list[str]:
    """Returns keys of the project's configuration as the loop has them; the loop's own stay as they are."""
    own = training_values(config)
    return [f"{TASK_PATH}.{key}" if key.partition(".")[0] in own else key for key in keys]


def _set_only(values: Mapping[str, Any]) -> dict[str, Any]:
    nested = {key: _set_only(value) if isinstance(value, Mapping) else value for key, value in values.items()}
    return {key: value for key, value in nested.items() if value is not None and value != {}}


def experiment_config(
    config: ConfigStruct, told: Description, class_weight: Mapping[int, float] | None, epochs: int, steps: int
) -> ExperimentConfig:
    """Returns the loop's configuration.

    Args:
      config: The project's.
      told: What the compiled model says of itself.
      class_weight: Weight of each class.
      epochs: How many in all.
      steps: Batches per epoch.
    """
    data = DataConfig(global_batch_size=config.get("batch_size", 32), drop_remainder=False)
    task = ComponentsConfig(
        model=told.model,
        optimizer=told.optimizer,
        loss=told.loss,
        loss_weights=told.loss_weights,
        train_data=data,
        validation_data=data,
        class_weight=None if class_weight is None else {int(k): float(v) for k, v in class_weight.items()},
        project=training_values(config),
    )
    return ExperimentConfig(
        task=task, trainer=per_epoch(epochs, steps, max_to_keep=2), runtime=RuntimeConfig(seed=config.seed)
    )
