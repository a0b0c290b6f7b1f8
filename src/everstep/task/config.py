"""What every task's configuration has."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import ClassVar, Literal

from everstep.config import Config
from everstep.config.base import Declined
from everstep.data.config import DataConfig
from everstep.errors import Problem, UsageError


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
        """Checks that no other data is configured.

        Raises:
          UsageError: A data section says what to read.
        """
        super().validate()
        problems = [*_unread("train_data", self.train_data), *_unread("validation_data", self.validation_data)]
        if problems:
            raise UsageError(problems)


def _unread(section: str, data: DataConfig) -> Iterator[Problem]:
    """Yields the settings of a data section that name data, which are not read."""
    usual = DataConfig()
    for name in ("input_path", *(field.name for field in dataclasses.fields(data) if field.name.startswith("tfds_"))):
        value = getattr(data, name)
        if value != getattr(usual, name):
            text = "but this task brings its own data and reads no other"
            remedy = "remove it, or write a task whose build_inputs reads it"
            yield Problem(f"{section}.{name}", text, received=value, remedy=remedy)


@dataclasses.dataclass
class AugmentationConfig(Config):
    """Random changes of images, drawn anew for every image in every training step; none of them by default."""

    flip: Literal["horizontal", "vertical", "horizontal_and_vertical"] | None = None
    """Mirror every second image, where the mirrored thing is still the same thing."""
    rotation: float = 0.0
    """Turn by up to this share of a full circle, either way: 0.05 is 18 degrees."""
    translation: float = 0.0
    """Shift by up to this share of height and width."""
    zoom: float = 0.0
    """Enlarge or shrink by up to this share."""

    def validate(self) -> None:
        """Checks the shares.

        Raises:
          UsageError: One is not from 0 to below 1; names the key.
        """
        super().validate()
        shares = {name: getattr(self, name) for name in ("rotation", "translation", "zoom")}
        wrong = [
            Problem(name, "must be from 0 to below 1", received=share)
            for name, share in shares.items()
            if not 0 <= share < 1
        ]
        if wrong:
            raise UsageError(wrong)
