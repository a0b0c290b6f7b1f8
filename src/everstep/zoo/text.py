"""Text: a small language model on sums that are made up on the spot. Imports no Keras."""

import dataclasses
from typing import Any

from everstep.config import register_experiment, register_task
from everstep.data.config import DataConfig
from everstep.experiment_config import ExperimentConfig
from everstep.loop.config import TrainerConfig
from everstep.optim.config import OptimizationConfig
from everstep.task.config import OwnDataConfig
from everstep.zoo.transformer_config import TransformerConfig


@dataclasses.dataclass
class SumsConfig(OwnDataConfig):
    """Learns to continue `27+95=` character by character."""

    model: TransformerConfig = dataclasses.field(default_factory=TransformerConfig)
    """The transformer's shape."""
    train_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=128, is_training=True)
    )
    """8,000 sums of two numbers below 100."""
    validation_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=1000, is_training=False)
    )
    """The other 2,000."""


@register_task(SumsConfig)
def sums_task(config: SumsConfig, **kwargs: Any) -> Any:
    """Makes the task; only now is Keras needed."""
    from everstep.zoo.text_task import SumsTask

    return SumsTask(config, **kwargs)


@register_experiment("text/tiny")
def tiny() -> ExperimentConfig:
    """A two-layer transformer that learns to add, 99 % of the digits of sums it has not seen, in under a minute."""
    steps = 800
    rate = {"type": "cosine", "cosine": {"initial_learning_rate": 3e-3}}
    warmup = {"type": "linear", "linear": {"warmup_steps": 100}}
    return ExperimentConfig(
        task=SumsConfig(),
        trainer=TrainerConfig(
            train_steps=steps,
            steps_per_loop=100,
            validation_interval=400,
            checkpoint_interval=400,
            optimizer_config=OptimizationConfig({"learning_rate": rate, "warmup": warmup}),
        ),
    )
