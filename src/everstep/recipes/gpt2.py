"""Language models of the shape of GPT-2, on text, on generated tokens, or a file of tokens. Imports no Keras.

everstep train text/gpt2_124m task.train_data.input_path=train.bin task.validation_data.input_path=val.bin
"""

import dataclasses
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from annotated_types import Ge

from everstep import ExperimentConfig, OptimizationConfig, TaskConfig, TrainerConfig, register_experiment, register_task
from everstep.data.text import TextDataConfig
from everstep.errors import Problem
from everstep.recipes.gpt2_config import GPT2ModelConfig
from everstep.task import GenerationConfig


@dataclasses.dataclass
class GPT2Config(TaskConfig):
    """Predicts the next token.

    `input_path` of a data section names text files, see `TextDataConfig`, or one file of tokens: a `.npy` array of
    whole numbers, or a `.bin` file of uint16 as nanoGPT's scripts write it, which is cut into sequences. Without a
    path, tokens are generated that follow a rule three times out of four.
    """

    model: GPT2ModelConfig = dataclasses.field(default_factory=GPT2ModelConfig)
    """The model's shape."""
    train_data: TextDataConfig = dataclasses.field(
        default_factory=lambda: TextDataConfig(global_batch_size=32, is_training=True)
    )
    """Sequences to train on."""
    validation_data: TextDataConfig = dataclasses.field(
        default_factory=lambda: TextDataConfig(global_batch_size=32, is_training=False)
    )
    """Sequences to evaluate on."""
    generated_sequences: Annotated[int, Ge(1)] = 4096
    """How many sequences are generated to train on, where no file is given; an eighth of it to evaluate on."""
    shipped_text: Literal["", "shakespeare"] = ""
    """A text that comes with everstep, where no file is given: nine plays to train on, and one to evaluate on."""
    generation: GenerationConfig = dataclasses.field(default_factory=GenerationConfig)
    """How text is generated: at evaluations, and by `everstep generate`."""
    loss_chunk_tokens: Annotated[int, Ge(1)] | None = None
    """Computes logits, loss and their gradients for so many tokens at a time, without storing logits in float32; None
    for Keras's loss. Smaller numbers need less memory; a number as large as a batch is fastest."""

    def _problems(self) -> Iterator[Problem]:
        yield from self._other_lengths("train_data")
        yield from self._other_lengths("validation_data")

    def _other_lengths(self, section: str) -> Iterator[Problem]:
        """Yields what would make rows of another length than the model's context, which is fixed."""
        data: TextDataConfig = getattr(self, section)
        reason, keys = "the rows of this model have one length, {context}", {"context": "task.model.context"}
        if data.buckets:
            yield Problem(f"{section}.buckets", reason, received=data.buckets, mentions=keys)
        if data.sequence_length not in (None, self.model.context):
            yield Problem(f"{section}.sequence_length", reason, received=data.sequence_length, mentions=keys)


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
    params = ExperimentConfig(task=GPT2Config(loss_chunk_tokens=65_536), trainer=trainer)
    # Activations of GELU are computed again in the backward pass: that takes less time than reading them.
    params.override({"runtime": {"mixed_precision_dtype": "bfloat16", "remat": ["gelu"]}})
    return params


@register_experiment("text/gpt2_tiny")
def gpt2_tiny() -> ExperimentConfig:
    """The same model with two small layers, which two cores train in a minute: it finds the rule in the tokens."""
    model = GPT2ModelConfig(vocabulary=256, context=32, layers=2, heads=2, width=64)
    return ExperimentConfig(
        task=GPT2Config(model=model, generated_sequences=2048),
        trainer=_trainer(steps=400, warmup=40, rate=6e-3, interval=200),
    )


@register_experiment("text/gpt2_shakespeare")
def gpt2_shakespeare() -> ExperimentConfig:
    """The same model trained on the bytes of nine plays by Shakespeare, in two minutes on two cores."""

    def data(batch_size: int, **options: Any) -> TextDataConfig:
        return TextDataConfig(global_batch_size=batch_size, tokenizer="bytes", long_texts="split", **options)

    task = GPT2Config(
        model=GPT2ModelConfig(vocabulary=272, context=64, layers=4, heads=4, width=128),
        train_data=data(32, is_training=True),
        validation_data=data(128, is_training=False),
        shipped_text="shakespeare",
        generation=GenerationConfig(temperature=0.8, top_k=40, max_tokens=48),
    )
    return ExperimentConfig(task=task, trainer=_trainer(steps=500, warmup=50, rate=3e-3, interval=250))
