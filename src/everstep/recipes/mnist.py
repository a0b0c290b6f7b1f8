"""MNIST: experiments on the shipped data. Imports no Keras; the task is imported when it is created."""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from everstep import (
    Config,
    DataConfig,
    ExperimentConfig,
    OptimizationConfig,
    TrainerConfig,
    register_experiment,
    register_task,
)
from everstep.errors import Problem
from everstep.task import AugmentationConfig, OwnDataConfig


@dataclasses.dataclass
class MnistModel(Config):
    """The classifier's shape."""

    kind: Literal["mlp", "cnn"] = "mlp"
    """Dense layers on pixels, or convolutions."""
    units: Annotated[int, Ge(1)] = 512
    """Width of the hidden layer."""
    dropout: Annotated[float, Ge(0), Lt(1)] = 0.2
    """Share of hidden units dropped in training."""


@dataclasses.dataclass
class MnistConfig(OwnDataConfig):
    """Handwritten digits."""

    model: MnistModel = dataclasses.field(default_factory=MnistModel)
    """The model's settings."""
    num_samples: Annotated[int, Ge(1)] | None = None
    """Use only so many training images; None for all 60,000."""
    train_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=128, is_training=True)
    )
    """The standard training split: 60,000 images."""
    validation_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=1000, is_training=False)
    )
    """The standard test split: 10,000 images."""


@dataclasses.dataclass
class AugmentedMnistConfig(MnistConfig):
    """Handwritten digits, rotated and shifted a little in training."""

    augmentation: AugmentationConfig = dataclasses.field(
        default_factory=lambda: AugmentationConfig(rotation=0.03, translation=0.07)
    )
    """How they are varied; a mirrored digit is none, so nothing is flipped."""


@dataclasses.dataclass
class DistilledMnistConfig(MnistConfig):
    """Handwritten digits, learned from a larger model that has learned them before."""

    teacher: str = ""
    """The trained model: a run, such as one of `mnist/mlp`, or a `.keras` file."""
    temperature: Annotated[float, Gt(0)] = 4.0
    """Softens the probabilities that are compared; 1 compares them as they are."""
    weight: Annotated[float, Ge(0), Le(1)] = 0.9
    """How much the teacher's outputs count, from 0 to 1; the labels count for the rest."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if not self.teacher:
            remedy = "train one, as everstep train mnist/mlp --model-dir runs/teacher, and name its directory"
            yield Problem("teacher", "is empty", remedy=remedy)


@register_task(MnistConfig)
def mnist_task(config: MnistConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.mnist_task import MnistTask

    return MnistTask(config, **kwargs)


@register_task(AugmentedMnistConfig)
def augmented_mnist_task(config: AugmentedMnistConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.mnist_task import AugmentedMnistTask

    return AugmentedMnistTask(config, **kwargs)


@register_task(DistilledMnistConfig)
def distilled_mnist_task(config: DistilledMnistConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.distilled_task import DistilledMnistTask

    return DistilledMnistTask(config, **kwargs)


@register_experiment("mnist/mlp")
def mlp() -> ExperimentConfig:
    """A dense network, 98 % accurate in under a minute."""
    return ExperimentConfig(
        task=MnistConfig(),
        trainer=TrainerConfig(
            train_steps=4000,
            validation_interval=1000,
            checkpoint_interval=1000,
            optimizer_config=OptimizationConfig(
                {"learning_rate": {"type": "cosine", "cosine": {"initial_learning_rate": 1e-3}}}
            ),
        ),
    )


@register_experiment("mnist/quick")
def quick() -> ExperimentConfig:
    """A smaller dense network, 98 % accurate after three epochs, in seconds: the one to start with."""
    config = mlp()
    config.override({"task": {"model": {"units": 256, "dropout": 0.1}}})
    steps = {"train_steps": 1404, "steps_per_loop": 234, "validation_interval": 468, "checkpoint_interval": 468}
    rate = {"cosine": {"initial_learning_rate": 3e-3}}
    config.override({"trainer": {**steps, "optimizer_config": {"learning_rate": rate}}})
    return config


@register_experiment("mnist/cnn")
def cnn() -> ExperimentConfig:
    """A small convolutional network, 99 % accurate in a few minutes on two cores."""
    config = mlp()
    config.override({"task": {"model": {"kind": "cnn", "units": 64}}, "trainer": {"train_steps": 2000}})
    return config


@register_experiment("mnist/augmented")
def augmented() -> ExperimentConfig:
    """The dense network on digits that are varied inside the model, 97.5 % accurate in under a minute."""
    config = mlp()
    config.task = AugmentedMnistConfig()
    config.override({"task": {"model": {"dropout": 0.0}}, "trainer": {"train_steps": 2000}})
    return config


@register_experiment("mnist/distilled")
def distilled() -> ExperimentConfig:
    """A small dense network that learns from 2,000 images and a trained model, `task.teacher`: 93 % accurate."""
    config = mlp()
    config.task = DistilledMnistConfig()
    config.override({"task": {"model": {"units": 32, "dropout": 0.0}, "num_samples": 2000}})
    return config


@register_experiment("mnist/local")
def local() -> ExperimentConfig:
    """A seconds-long run of everything, for debugging on any machine."""
    config = mlp()
    config.override({"task": {"model": {"units": 16}, "num_samples": 2000, "train_data": {"global_batch_size": 32}}})
    steps = {"train_steps": 60, "steps_per_loop": 20, "validation_interval": 30, "checkpoint_interval": 30}
    config.override({"trainer": {**steps, "validation_steps": 2}})
    return config
