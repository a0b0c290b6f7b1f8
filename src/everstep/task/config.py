"""What every task's configuration has."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar

from everstep.config import Config, ConfigError, Problem
from everstep.config.declined import Declined
from everstep.data.config import DataConfig


@dataclasses.dataclass
class TaskConfig(Config):
    """Base of task configurations; subclass it, add fields, and register a task for the subclass.

    A resumed run may not change the fields you add, for they may alter what it computes, except those that the
    subclass names in a `_may_change` of its own.
    """

    _may_change: ClassVar[frozenset[str]] = frozenset({"init_checkpoint", "validation_data", "name"})
    _declined: ClassVar[Mapping[str, Declined]] = {
        "differential_privacy_config": Declined("differentially private training is not offered"),
        "allow_image_summary": Declined("images are not logged: write them in an action of your own", False),
    }

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


@dataclasses.dataclass
class OwnDataConfig(TaskConfig):
    """Base for tasks that bring their data themselves, and read none that a data section may name."""

    def validate(self) -> None:
        """Checks that nobody expects other data.

        Raises:
          UsageError: A data section says what to read.
        """
        super().validate()
        problems = [*_unread("train_data", self.train_data), *_unread("validation_data", self.validation_data)]
        if problems:
            raise ConfigError(problems)


def _unread(section: str, data: DataConfig) -> Iterator[Problem]:
    """Yields what a data section says about where data is, and nobody reads."""
    usual = DataConfig()
    for name in ("input_path", *(field.name for field in dataclasses.fields(data) if field.name.startswith("tfds_"))):
        value = getattr(data, name)
        if value != getattr(usual, name):
            text = f"received {value!r}, but this task brings its own data and reads no other: leave it out, or write"
            yield Problem(f"{section}.{name}", f"{text} a task whose build_inputs reads it")
