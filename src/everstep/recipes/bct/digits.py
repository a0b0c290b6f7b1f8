"""Experiments on scikit-learn's 8×8 digits: an old model of six of them, and a new one of all ten. Imports no Keras.

everstep train bct/digits_old --model-dir runs/old
everstep train bct/digits task.bct.old_model=runs/old --model-dir runs/new
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any

from annotated_types import Ge, Le

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
from everstep.recipes.bct.config import BCTConfig
from everstep.recipes.bct.digits_data import TRAINING_IMAGES

_OLD_IMAGES = 280
# Chosen on held-out training images: `examples/bct_digits.py --choose`.
_OLD_STEPS, _OLD_RATE = 300, 1e-3
_STEPS, _RATE = 600, 3e-3


@dataclasses.dataclass
class DigitsModel(Config):
    """The embedding's shape."""

    units: Annotated[int, Ge(1)] = 256
    """Width of the hidden layer."""
    embedding_size: Annotated[int, Ge(1)] = 32
    """Components of an embedding."""


@dataclasses.dataclass
class DigitsConfig(BCTConfig):
    """Handwritten digits, 8×8, of the classes that are named."""

    classes: list[str] = dataclasses.field(default_factory=lambda: [str(digit) for digit in range(10)])
    """The digits to learn; images of others are left out."""
    model: DigitsModel = dataclasses.field(default_factory=DigitsModel)
    """The model's settings."""
    num_samples: Annotated[int, Ge(1)] | None = None
    """Use only so many of the 1,200 training images, counted after other classes are left out; None for all."""
    held_out: Annotated[int, Ge(0), Le(TRAINING_IMAGES - 1)] = 0
    """So many of the training images, the last ones, are held out and evaluated in place of the test images, so that
    settings can be chosen without the test images."""
    train_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=64, is_training=True)
    )
    """Training images."""
    validation_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=200, is_training=False)
    )
    """The 597 test images, less those of other classes."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        unknown = [name for name in self.classes if name not in set("0123456789")]
        if unknown:
            yield Problem("classes", "which is no digit from '0' to '9'", received=unknown[0])


@register_task(DigitsConfig)
def digits_task(config: DigitsConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.bct.digits_task import DigitsTask

    return DigitsTask(config, **kwargs)


@register_experiment("bct/digits")
def digits() -> ExperimentConfig:
    """All ten digits; with task.bct.old_model, compatible with an older model."""
    return ExperimentConfig(
        task=DigitsConfig(),
        trainer=TrainerConfig(
            train_steps=_STEPS,
            steps_per_loop=_STEPS // 2,
            validation_interval=_STEPS,
            checkpoint_interval=_STEPS // 2,
            optimizer_config=OptimizationConfig(
                {
                    "optimizer": {"type": "adam"},
                    "learning_rate": {"type": "constant", "constant": {"learning_rate": _RATE}},
                }
            ),
        ),
    )


@register_experiment("bct/digits_old")
def digits_old() -> ExperimentConfig:
    """The digits 0 to 5 from a few images: an old model to be compatible with."""
    config = digits()
    config.override({"task": {"classes": list("012345"), "num_samples": _OLD_IMAGES}})
    steps = {"train_steps": _OLD_STEPS, "steps_per_loop": _OLD_STEPS, "validation_interval": _OLD_STEPS}
    rate = {"optimizer_config": {"learning_rate": {"constant": {"learning_rate": _OLD_RATE}}}}
    config.override({"trainer": {**steps, **rate, "checkpoint_interval": _OLD_STEPS}})
    return config
