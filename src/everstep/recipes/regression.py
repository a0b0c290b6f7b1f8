"""Regression: a curve through noisy points, which are generated. Imports no Keras."""

import dataclasses
from typing import Annotated, Any

from annotated_types import Ge

from everstep import (
    Config,
    DataConfig,
    ExperimentConfig,
    OptimizationConfig,
    TrainerConfig,
    register_experiment,
    register_task,
)
from everstep.task import OwnDataConfig


@dataclasses.dataclass
class CurveModel(Config):
    """The network's shape."""

    units: Annotated[int, Ge(1)] = 64
    """Width of both hidden layers."""


@dataclasses.dataclass
class SineConfig(OwnDataConfig):
    """A sine from noisy points."""

    model: CurveModel = dataclasses.field(default_factory=CurveModel)
    """The model's settings."""
    noise: Annotated[float, Ge(0)] = 0.1
    """Standard deviation of what is added to the training points; the points to evaluate on have none."""
    train_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=64, is_training=True)
    )
    """4,096 noisy points."""
    validation_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=512, is_training=False)
    )
    """512 points on the curve."""


@register_task(SineConfig)
def sine_task(config: SineConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.regression_task import SineTask

    return SineTask(config, **kwargs)


@register_experiment("regression/sine")
def sine() -> ExperimentConfig:
    """A curve through noisy points, off by 0.02 on average, in seconds."""
    rate = {"type": "cosine", "cosine": {"initial_learning_rate": 1e-2}}
    return ExperimentConfig(
        task=SineConfig(),
        trainer=TrainerConfig(
            train_steps=2000,
            validation_interval=1000,
            checkpoint_interval=1000,
            optimizer_config=OptimizationConfig({"learning_rate": rate}),
        ),
    )
