"""KerasHub, imported where it is used.

Where TensorFlow is installed, KerasHub imports it, which takes seconds and is needed only on TensorFlow: on JAX and
PyTorch it is hidden from KerasHub. Its tokenizers work the same: outside of `tf.data` they never use TensorFlow.
"""

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from everstep.data import is_text, nest
from everstep.engine.late_tensorflow import not_found
from everstep.errors import missing_extra


def keras_hub() -> Any:
    """Returns the package.

    Raises:
      UsageError: It is not installed.
    """
    try:
        with not_found():
            return importlib.import_module("keras_hub")
    except ImportError as error:
        if error.name != "keras_hub":
            raise
        raise missing_extra("keras-hub", "hub", "a KerasHub model") from None


def is_hub_task(model: Any) -> bool:
    """Returns whether a model is one of KerasHub with a backbone, such as `GPT2CausalLM`."""
    hub = sys.modules.get("keras_hub")
    return hub is not None and isinstance(model, hub.models.Task)


def preprocesses(model: Any) -> bool:
    """Returns whether a model is a task of KerasHub with a preprocessor."""
    return is_hub_task(model) and model.preprocessor is not None


def preprocess(model: Any, *parts: Any) -> tuple[Any, ...]:
    """Returns what the preprocessor of a task of KerasHub makes of features, labels and weights, as arrays."""
    made = model.preprocess_samples(*(nest.map_leaves(_in_python, part) for part in parts))
    return tuple(nest.map_leaves(_on_host, part) for part in (made if isinstance(made, tuple) else (made,)))


def _in_python(leaf: Any) -> Any:
    """Returns text as a list, which preprocessors expect, and any other array unchanged."""
    array = np.asarray(leaf)
    return _decoded(array.tolist()) if is_text(array) else leaf


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    return value.decode() if isinstance(value, bytes) else value


def _on_host(leaf: Any) -> np.ndarray:
    return keras.ops.convert_to_numpy(leaf) if keras.ops.is_tensor(leaf) else np.asarray(leaf)


def adapted_layers(model: Any) -> list[Any]:
    """Returns the layers of a model that have LoRA adapters."""
    return [layer for layer in model._flatten_layers(include_self=False) if getattr(layer, "lora_enabled", False)]


def greedy(
    model: Any, prompts: Sequence[Sequence[int]], length: int, max_tokens: int, stop: int | None
) -> list[list[int]]:
    """Returns the most likely continuations of prompts, computed by KerasHub.

    Args:
      model: A KerasHub causal language model, compiled or not.
      prompts: Tokens; each prompt is shorter than `length`.
      length: Tokens of prompts and continuations together.
      max_tokens: How many tokens to write at most.
      stop: The token that ends a text.
    """
    model.sampler = keras_hub().samplers.GreedySampler()
    model.generate_function = None
    rows, mask = (np.zeros((len(prompts), length), dtype) for dtype in ("int32", "bool"))
    for row, known, prompt in zip(rows, mask, prompts, strict=True):
        row[: len(prompt)], known[: len(prompt)] = prompt, True
    generate = model.make_generate_function()
    found = generate({"token_ids": rows, "padding_mask": mask}, stop_token_ids=None if stop is None else [stop])
    written = []
    for row, prompt in zip(keras.ops.convert_to_numpy(found["token_ids"]).tolist(), prompts, strict=True):
        new = row[len(prompt) : len(prompt) + max_tokens]
        written.append(new[: new.index(stop)] if stop in new else new)
    return written
