"""What every task's configuration has."""

import dataclasses

from everstep.config import Config
from everstep.data.config import DataConfig


@dataclasses.dataclass
class TaskConfig(Config):
    """Base of task configurations; subclass it, add fields, and register a task for the subclass."""

    init_checkpoint: str = ""
    """Where to take initial weights from; never consulted when the run has a checkpoint of its own."""
    model: Config | None = None
    """The model's own settings."""
    train_data: DataConfig = dataclasses.field(default_factory=DataConfig)
    """Data to train on."""
    validation_data: DataConfig = dataclasses.field(default_factory=DataConfig)
    """Data to evaluate on."""
    name: str | None = None
    """A name for logs."""
