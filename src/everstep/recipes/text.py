"""Text: a language model on sums, and a tagger of names, on text that is generated. Imports no Keras."""

import dataclasses
from typing import Any

from everstep import DataConfig, ExperimentConfig, OptimizationConfig, TrainerConfig, register_experiment, register_task
from everstep.recipes.transformer_config import TransformerConfig
from everstep.task import OwnDataConfig


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
    """The 2,000 sums that are not trained on: all sums of two numbers below 100 are 10,000."""


@register_task(SumsConfig)
def sums_task(config: SumsConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.sums import SumsTask

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


@dataclasses.dataclass
class TagsConfig(OwnDataConfig):
    """Classifies words as persons, places, months or others; some names belong to several classes."""

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
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.sentences import TagsTask

    return TagsTask(config, **kwargs)


@register_experiment("text/tags")
def tags() -> ExperimentConfig:
    """A small transformer that classifies the words of sentences, 99 % of them correctly, in seconds."""
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
