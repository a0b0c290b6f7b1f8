"""Language models of the shape of GPT-2, on generated tokens or a file of your own. Imports no Keras.

everstep train text/gpt2_124m task.train_data.input_path=train.bin task.validation_data.input_path=val.bin
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

from everstep.config import Config, register_experiment, register_task
from everstep.data.config import DataConfig
from everstep.engine.config import RuntimeConfig
from everstep.errors import Problem, UsageError
from everstep.experiment_config import ExperimentConfig
from everstep.loop.config import TrainerConfig
from everstep.task.config import TaskConfig
from everstep.task.optim.config import OptimizationConfig


@dataclasses.dataclass
class GPT2ModelConfig(Config):
    """The shape of the model; the defaults are those of GPT-2 with 124 M parameters."""

    vocabulary: int = 50304
    """Tokens; the 50,257 of GPT-2 are padded to a multiple of 128, which makes the products of the logits faster."""
    context: int = 1024
    """Tokens in a sequence."""
    layers: int = 12
    """Blocks, each of an attention and a feed-forward part."""
    heads: int = 12
    """Attention heads; they share the width. 64 numbers per head are what flash attention is fastest with."""
    width: int = 768
    """Numbers per token."""
    bias: bool = False
    """Whether dense layers and normalizations have a bias, as GPT-2 has; without it is faster, and as good."""
    dropout: float = 0.0
    """Share of a block's outputs dropped in training. Attention itself has no dropout: flash attention excludes it."""
    fused_qkv: bool = False
    """Whether queries, keys and values are one product; XLA then copies them apart."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        problems = list(self._wrong())
        if problems:
            raise UsageError(problems)

    def _wrong(self) -> Iterator[Problem]:
        counts = {name: getattr(self, name) for name in ("vocabulary", "context", "layers", "heads", "width")}
        yield from (Problem(name, "must be at least 1", received=n) for name, n in counts.items() if n < 1)
        if self.heads > 0 and self.width % self.heads:
            yield Problem("heads", f"must divide the width, {self.width}", received=self.heads)
        if not 0 <= self.dropout < 1:
            yield Problem("dropout", "must be from 0 to below 1", received=self.dropout)


@dataclasses.dataclass
class GPT2Config(TaskConfig):
    """Predicts the next token.

    `input_path` of a data section is a file of tokens: a `.npy` array of whole numbers, or a `.bin` file of uint16 as
    nanoGPT's scripts write it. It is cut into sequences. Without a path, tokens are generated that follow a rule three
    times out of four.
    """

    model: GPT2ModelConfig = dataclasses.field(default_factory=GPT2ModelConfig)
    """The model's shape."""
    train_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=32, is_training=True)
    )
    """Sequences to train on."""
    validation_data: DataConfig = dataclasses.field(
        default_factory=lambda: DataConfig(global_batch_size=32, is_training=False)
    )
    """Sequences to evaluate on."""
    generated_sequences: int = 4096
    """How many sequences are generated to train on, where no file is given; an eighth of it to evaluate on."""
    loss_chunk_tokens: int | None = None
    """Computes logits and loss for so many tokens at a time, so that they need less memory; None for all at once."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        counts = {name: getattr(self, name) for name in ("generated_sequences", "loss_chunk_tokens")}
        wrong = {name: count for name, count in counts.items() if count is not None and count < 1}
        if wrong:
            raise UsageError([Problem(name, "must be at least 1", received=count) for name, count in wrong.items()])


@register_task(GPT2Config)
def gpt2_task(config: GPT2Config, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.gpt2_task import GPT2Task

    return GPT2Task(config, **kwargs)


def _trainer(steps: int, warmup: int, rate: float, interval: int) -> TrainerConfig:
    adamw = {"beta_2": 0.95, "weight_decay_rate": 0.1, "exclude_from_weight_decay": ["bias", "gamma", "beta"]}
    return TrainerConfig(
        train_steps=steps,
        steps_per_loop=interval // 10,
        validation_interval=interval,
        checkpoint_interval=interval,
        optimizer_config=OptimizationConfig(
            {
                "optimizer": {"type": "adamw", "adamw": adamw},
                "learning_rate": {"type": "cosine", "cosine": {"initial_learning_rate": rate, "alpha": 0.1}},
                "warmup": {"type": "linear", "linear": {"warmup_steps": warmup}},
            }
        ),
    )


@register_experiment("text/gpt2_124m")
def gpt2_124m() -> ExperimentConfig:
    """GPT-2 with 124 M parameters in bfloat16, batches of 32 × 1024 tokens; for one large GPU."""
    trainer = _trainer(steps=20_000, warmup=700, rate=6e-4, interval=1000)
    return ExperimentConfig(task=GPT2Config(), trainer=trainer, runtime=RuntimeConfig(mixed_precision_dtype="bfloat16"))


@register_experiment("text/gpt2_tiny")
def gpt2_tiny() -> ExperimentConfig:
    """The same model with two small layers, which two cores train in a minute: it finds the rule in the tokens."""
    model = GPT2ModelConfig(vocabulary=256, context=32, layers=2, heads=2, width=64)
    return ExperimentConfig(
        task=GPT2Config(model=model, generated_sequences=2048),
        trainer=_trainer(steps=400, warmup=40, rate=6e-3, interval=200),
    )
