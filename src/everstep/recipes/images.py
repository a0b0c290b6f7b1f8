"""A classifier of images in files. Imports no Keras; the task is imported when it is created."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

from annotated_types import Ge, Lt

from everstep import (
    Config,
    ExperimentConfig,
    OptimizationConfig,
    TaskConfig,
    TrainerConfig,
    register_experiment,
    register_task,
)
from everstep.data.images import ImageDataConfig, find_classes
from everstep.errors import Problem, UsageError, problems_under
from everstep.task import AugmentationConfig

_SHAPE = ("size", "channels", "resize")
_FILES = ("input_path", "image_column", "label_column", "validation_split")


@dataclasses.dataclass
class ImageModel(Config):
    """A small residual network."""

    filters: Annotated[int, Ge(1)] = 16
    """Filters of the first stage; each stage has twice as many as the one before."""
    stages: Annotated[int, Ge(1)] = 3
    """Stages; each halves height and width."""
    blocks: Annotated[int, Ge(1)] = 1
    """Residual blocks in a stage, of two convolutions each."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.1
    """Share of features dropped in training, before the last layer."""


@dataclasses.dataclass
class ImageFilesConfig(TaskConfig):
    """Images in files, with a class each."""

    model: ImageModel = dataclasses.field(default_factory=ImageModel)
    """The network's shape."""
    classes: list[str] = dataclasses.field(default_factory=list)
    """Names of the classes, in the order of the model's outputs. Empty: found in `train_data`, sorted, and stored."""
    augmentation: AugmentationConfig = dataclasses.field(default_factory=AugmentationConfig)
    """Random changes inside the model, on the device; those of `train_data.augmentation` are made on the host."""
    train_data: ImageDataConfig = dataclasses.field(
        default_factory=lambda: ImageDataConfig(
            size=64, global_batch_size=64, validation_split=0.1, is_training=True, drop_remainder=True
        )
    )
    """The images to train on."""
    validation_data: ImageDataConfig = dataclasses.field(
        default_factory=lambda: ImageDataConfig(global_batch_size=256, is_training=False)
    )
    """The images to evaluate on, in the shape of `train_data`. Without `input_path`: those that training leaves out."""

    def _problems(self) -> Iterator[Problem]:
        least = 2**self.model.stages
        if self.train_data.size is None:
            yield Problem("train_data.size", "is required")
        elif min(self.train_data.height_and_width) < least:
            reason = f"is too small for {self.model.stages} stages, each of which halves it"
            remedy = f"use at least {least}, or lower model.stages"
            yield Problem("train_data.size", reason, received=self.train_data.size, remedy=remedy)
        usual = ImageDataConfig()
        for name in _SHAPE:
            value, wanted = getattr(self.validation_data, name), getattr(self.train_data, name)
            if value not in (wanted, getattr(usual, name)):
                reason = f"but train_data.{name} is {wanted!r}, and the model has one shape"
                yield Problem(f"validation_data.{name}", reason, received=value, remedy="remove it")
        if len(set(self.classes)) < len(self.classes):
            yield Problem("classes", "has a name twice", received=self.classes)

    def evaluated(self, data: ImageDataConfig) -> ImageDataConfig:
        """Returns what evaluation reads: images in the shape of `train_data`, and without `input_path` its files."""
        names = _SHAPE if data.input_path else (*_SHAPE, *_FILES)
        return data.replace(**{name: getattr(self.train_data, name) for name in names})


@register_task(ImageFilesConfig)
def image_files_task(config: ImageFilesConfig, **kwargs: Any) -> Any:
    """Returns the task, after the classes are found; only now is Keras needed.

    The classes become part of the config, and so of the run: a resumed run must have the same, and an evaluation or
    export of the run needs no training data.
    """
    from everstep.recipes.images_task import ImageFilesTask

    if not config.classes:
        try:
            classes = find_classes(config.train_data)
        except UsageError as error:
            problems = problems_under("task.train_data", error)
            raise UsageError(problems) from error
        config.override({"classes": classes})
    return ImageFilesTask(config, **kwargs)


@register_experiment("image/folder")
def folder() -> ExperimentConfig:
    """A small residual network for the images of a folder that has a subfolder for each class."""
    return ExperimentConfig(
        task=ImageFilesConfig(),
        trainer=TrainerConfig(
            epochs=10,
            validation_interval="1 epoch",
            checkpoint_interval="1 epoch",
            optimizer_config=OptimizationConfig(
                {
                    "optimizer": {"type": "adamw", "adamw": {"weight_decay_rate": 0.01}},
                    "learning_rate": {"type": "cosine", "cosine": {"initial_learning_rate": 3e-3}},
                }
            ),
        ),
    )
