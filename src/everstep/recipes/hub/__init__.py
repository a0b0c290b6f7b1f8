"""Experiments with KerasHub models: `hub/causal_lm`, `hub/text_classifier`, `hub/image_classifier`.

Imports no Keras.

config.py            the configurations: preset, LoRA rank 8, `quantize`, `freeze`, classes, columns: defaults and
                     refusals
causal_lm.py         the task of `hub/causal_lm`: tokenizer, prompts, generation
text_classifier.py   the task of `hub/text_classifier`: tokens, labels, `new_head`
image_classifier.py  the task of `hub/image_classifier`: scaling and size of images
presets.py           models from presets: where from, of which kind; "is not a preset", cannot be downloaded
training_parts.py    what of a model is trained: LoRA targets, quantized kernels, `freeze`; matches nothing
packing.py           keeps the documents of a row apart in attention: for which models
"""

from typing import Any

from everstep import ExperimentConfig, OptimizationConfig, TrainerConfig, register_experiment, register_task
from everstep.recipes.hub.config import CausalLMConfig, ImageClassifierConfig, TextClassifierConfig


@register_task(CausalLMConfig)
def causal_lm_task(config: CausalLMConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.hub.causal_lm import CausalLMTask

    return CausalLMTask(config, **kwargs)


@register_experiment("hub/causal_lm")
def causal_lm() -> ExperimentConfig:
    """A KerasHub language model on texts: set task.preset, task.train_data.input_path, and task.lora.rank for LoRA."""
    return ExperimentConfig(task=CausalLMConfig(), trainer=_trainer(rate=2e-4))


@register_task(TextClassifierConfig)
def text_classifier_task(config: TextClassifierConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.hub.text_classifier import TextClassifierTask

    return TextClassifierTask(config, **kwargs)


@register_experiment("hub/text_classifier")
def text_classifier() -> ExperimentConfig:
    """A KerasHub classifier of texts: set task.preset, task.classes and task.train_data.input_path."""
    return ExperimentConfig(task=TextClassifierConfig(), trainer=_trainer(rate=5e-5))


@register_task(ImageClassifierConfig)
def image_classifier_task(config: ImageClassifierConfig, **kwargs: Any) -> Any:
    """Returns the task; only now is Keras needed."""
    from everstep.recipes.hub.image_classifier import ImageClassifierTask

    return ImageClassifierTask(config, **kwargs)


@register_experiment("hub/image_classifier")
def image_classifier() -> ExperimentConfig:
    """A KerasHub classifier of images: set task.preset, task.classes and task.train_data.input_path."""
    return ExperimentConfig(task=ImageClassifierConfig(), trainer=_trainer(rate=5e-5))


def _trainer(rate: float) -> TrainerConfig:
    steps, interval = 1000, 100
    return TrainerConfig(
        train_steps=steps,
        steps_per_loop=10,
        validation_interval=interval,
        checkpoint_interval=interval,
        optimizer_config=OptimizationConfig(
            {
                "optimizer": {"type": "adamw", "adamw": {"exclude_from_weight_decay": ["bias", "norm"]}},
                "learning_rate": {"type": "cosine", "cosine": {"initial_learning_rate": rate}},
                "warmup": {"type": "linear", "linear": {"warmup_share": 0.05}},
            }
        ),
    )
