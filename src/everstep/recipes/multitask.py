"""Two tasks on MNIST with one model: which digit it is, and whether it is odd. Imports no Keras."""

import dataclasses
from typing import Annotated, Any, Literal

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
from everstep.task.multitask import MultiTaskConfig, TaskRoutine


@dataclasses.dataclass
class DigitConfig(OwnDataConfig):
    """One question about handwritten digits."""

    target: Literal["digit", "parity"] = "digit"
    """Which of ten digits it is, or whether it is odd."""
    num_samples: Annotated[int, Ge(1)] | None = None
    """Use only so many training images; None for all 60,000."""
    train_data: DataConfig = dataclasses.field(default_factory=lambda: DataConfig(global_batch_size=128))
    """The standard training split: 60,000 images."""
    validation_data: DataConfig = dataclasses.field(default_factory=lambda: DataConfig(global_batch_size=1000))
    """The standard test split: 10,000 images."""


@dataclasses.dataclass
class SharedModel(Config):
    """What the tasks share."""

    units: int = 128
    """Width of the hidden layer."""
    dropout: float = 0.1
    """Share of hidden units dropped in training."""


@dataclasses.dataclass
class DigitsConfig(MultiTaskConfig):
    """Both questions, one hidden layer."""

    model: SharedModel = dataclasses.field(default_factory=SharedModel)
    """The model's settings."""
    task_routines: list[TaskRoutine] = dataclasses.field(
        default_factory=lambda: [
            TaskRoutine(task_name="digit", task_config=DigitConfig(target="digit")),
            TaskRoutine(task_name="parity", task_config=DigitConfig(target="parity")),
        ]
    )
    """The tasks; each has an output of the model."""


@register_task(DigitConfig)
def digit_task(config: DigitConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.multitask_task import DigitTask

    return DigitTask(config, **kwargs)


@register_task(DigitsConfig)
def digits_task(config: DigitsConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.multitask_task import DigitsTask

    return DigitsTask(config, **kwargs)


@register_experiment("multitask/digits")
def digits() -> ExperimentConfig:
    """Two tasks, one model: which digit, and odd or even; 97 % and 98 % accurate in under a minute."""
    steps = 4000
    rate = {"type": "cosine", "cosine": {"initial_learning_rate": 2e-3}}
    return ExperimentConfig(
        task=DigitsConfig(),
        trainer=TrainerConfig(
            train_steps=steps,
            validation_interval=2000,
            checkpoint_interval=2000,
            optimizer_config=OptimizationConfig({"learning_rate": rate}),
        ),
    )
