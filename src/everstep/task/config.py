"""What every task's configuration has."""

import dataclasses
from typing import ClassVar

from everstep.config import Config
from everstep.data.config import DataConfig


@dataclasses.dataclass
class TaskConfig(Config):
    """Base of task configurations; subclass it, add fields, and register a task for the subclass.

    A resumed run may not change the fields you add, for they may alter what it computes, except those that the
    subclass names in a `_may_change` of its own.
    """

    _may_change: ClassVar[frozenset[str]] = frozenset({"init_checkpoint", "validation_data", "name"})

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
