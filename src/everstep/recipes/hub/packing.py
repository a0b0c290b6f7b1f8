"""Packed rows: several documents in one row of a batch, each as if it were alone.

`keep_apart(model)` prepares a KerasHub language model. From then on it also takes batches with `segment_ids`, the
number of the document that each token belongs to, and `positions`, its place in the document:

    keep_apart(model)
    logits = model({"token_ids": …, "padding_mask": …, "segment_ids": …, "positions": …})

A token then attends only to tokens of its own document, and positions start at 0 in each document. Batches without
`segment_ids` are treated as before, and so is `model.generate`.

The layers of KerasHub compute their attention masks and positions themselves, so methods of these layers, of this model
only, are replaced. While the model is called, a context variable holds the documents of the batch.
"""

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
from keras import ops

from everstep.engine import keras_hub
from everstep.errors import UsageError

SEGMENTS, POSITIONS = "segment_ids", "positions"

PACKED = (
    "GPT2Backbone",
    "OPTBackbone",
    "GPTNeoXBackbone",
    "BloomBackbone",
    "FalconBackbone",
    "LlamaBackbone",
    "Llama3Backbone",
    "MistralBackbone",
    "MixtralBackbone",
    "Phi3Backbone",
    "QwenBackbone",
    "QwenMoeBackbone",
    "Qwen3Backbone",
    "SmolLM3Backbone",
    "GemmaBackbone",
    "Gemma3Backbone",
    "GptOssBackbone",
)
"""The backbones whose documents can be kept apart; a test compares each with documents that are alone in their rows."""

_MASKS = ("_compute_self_attention_mask", "_compute_attention_mask")


class Documents(NamedTuple):
    """The documents of a batch.

    Attributes:
      same: Whether two tokens belong to the same document, (batch, length, length).
      positions: The place of each token in its document, (batch, length).
    """

    same: Any
    positions: Any


_current: contextvars.ContextVar[Documents | None] = contextvars.ContextVar("documents", default=None)


def keep_apart(model: keras.Model) -> None:
    """Makes a KerasHub language model keep the documents of packed rows apart; repeating it does nothing.

    Raises:
      UsageError: Its layers compute attention in a way that this module does not know.
    """
    backbone = type(model.backbone).__name__
    sees_images = getattr(model.backbone, "vision_encoder", None) is not None
    by_length = getattr(model.backbone, "rope_scaling_type", None) is not None  # Phi-3: long rows rotate differently
    if backbone not in PACKED or sees_images or by_length:
        raise UsageError(
            f"documents cannot be kept apart in the rows of a {backbone}",
            key="task.train_data.packing",
            received=True,
            remedy=f"set packing=false, or use one of {', '.join(name.removesuffix('Backbone') for name in PACKED)}",
        )
    if hasattr(model, "_everstep_packed"):
        return
    model._everstep_packed = True
    layers = keras_hub().layers
    for layer in model.backbone._flatten_layers(include_self=False):
        for name in _MASKS:
            if hasattr(layer, name):
                setattr(layer, name, _masked(getattr(layer, name)))
        if isinstance(layer, layers.PositionEmbedding | layers.RotaryEmbedding):
            layer.call = _placed(layer.call)
    model.call = _called(model.call)


@contextlib.contextmanager
def documents(features: Any) -> Iterator[Any]:
    """Inside the block layers of prepared models keep the documents of this batch apart.

    Args:
      features: The inputs of a batch.

    Yields:
      The inputs that the model itself takes.
    """
    if not isinstance(features, Mapping) or SEGMENTS not in features:
        yield features
        return
    segments, positions = features[SEGMENTS], features[POSITIONS]
    same = ops.equal(ops.expand_dims(segments, 2), ops.expand_dims(segments, 1))
    token = _current.set(Documents(same, positions))
    try:
        yield {name: value for name, value in features.items() if name not in (SEGMENTS, POSITIONS)}
    finally:
        _current.reset(token)


def _called(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the call of a model that also takes the documents of a batch."""

    def packed_call(inputs: Any, training: Any = None, mask: Any = None) -> Any:
        with documents(inputs) as own:
            return call(own, training=training, mask=mask)

    return packed_call


def _masked(compute: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the attention mask of a layer without pairs of tokens of different documents."""

    def packed_mask(*args: Any, **kwargs: Any) -> Any:
        mask, current = compute(*args, **kwargs), _current.get()
        return mask if current is None else ops.where(current.same, mask, ops.zeros_like(mask))

    return packed_mask


def _placed(call: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the call of a layer that adds or rotates positions, with positions that start anew in each document."""

    def packed_positions(inputs: Any, start_index: Any = 0, positions: Any = None) -> Any:
        current = _current.get()
        if current is not None and positions is None:
            positions = current.positions
        return call(inputs, start_index=start_index, positions=positions)

    return packed_positions
