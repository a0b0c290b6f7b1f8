"""`TaskConfig`: the configuration that all tasks share; those of image augmentation and of generated text."""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Lt

from everstep.config import Config, Declined
from everstep.data import DataConfig
from everstep.errors import Problem


@dataclasses.dataclass
class TaskConfig(Config):
    """Base of task configurations; subclass it, add fields, and register a task for the subclass.

    A resumed run must not change the fields you add, since they may change its results, except those that the subclass
    lists in its own `_may_change`.
    """

    _may_change: ClassVar[frozenset[str]] = frozenset({"init_checkpoint", "validation_data", "name"})
    _declined: ClassVar[Mapping[str, Declined]] = {
        "differential_privacy_config": Declined("differentially private training is not supported"),
        "allow_image_summary": Declined("trainer.tracking.samples logs images", False),
    }

    init_checkpoint: str = ""
    """Where to load initial weights from; not read if the run already has a checkpoint."""
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
    """Base for tasks that provide their own data and do not read the data sections."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from _unread("train_data", self.train_data)
        yield from _unread("validation_data", self.validation_data)


def _unread(section: str, data: DataConfig) -> Iterator[Problem]:
    """Yields a problem for each setting of a data section that names data."""
    default = DataConfig()
    for name in ("input_path", *(field.name for field in dataclasses.fields(data) if field.name.startswith("tfds_"))):
        value = getattr(data, name)
        if value != getattr(default, name):
            text = "but this task brings its own data and reads no other"
            remedy = "remove it, or write a task whose build_inputs reads it"
            yield Problem(f"{section}.{name}", text, received=value, remedy=remedy)


@dataclasses.dataclass
class AugmentationConfig(Config):
    """Random changes of images, drawn for every image in every training step; none by default."""

    flip: Literal["horizontal", "vertical", "horizontal_and_vertical"] | None = None
    """Mirror half of the images, for classes that mirroring does not change."""
    rotation: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Rotate by up to this fraction of a full circle, either way: 0.05 is 18 degrees."""
    translation: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Shift by up to this fraction of height and width."""
    zoom: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Enlarge or shrink by up to this fraction."""


@dataclasses.dataclass
class GenerationConfig(Config):
    """How a language model writes text: at evaluations, and by `everstep generate`."""

    max_tokens: Annotated[int, Ge(1)] = 64
    """How many tokens to write at most."""
    prompt_tokens: Annotated[int, Ge(1)] = 16
    """How many tokens of a validation text are the prompt, where the data has no prompts of its own."""
    temperature: Annotated[float, Ge(0)] = 0.0
    """0 takes the most likely token; 1 draws tokens by their probability, less prefers likely ones."""
    top_k: Annotated[int, Ge(1)] | None = None
    """Draws only from so many of the most likely tokens. None: from all."""
    seed: Annotated[int, Ge(0)] = 0
    """What is drawn; the same seed gives the same text."""
