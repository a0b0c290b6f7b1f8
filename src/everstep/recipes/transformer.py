"""A plain pre-norm transformer from Keras layers; both of its blocks can be replaced.

    model = transformer(vocabulary=100, length=64, config=TransformerConfig(width=128), causal=True)

A block is a function from tensor to tensor, (batch, length, width) both, that is called while the model is built.
Another one comes in as an argument, or by a gin binding:

    transformer.attention = @talking_heads
    transformer.feed_forward = @gated

It has no custom classes, so its `.keras` file loads wherever Keras is installed.
"""

from collections.abc import Callable
from typing import Any

import keras
from keras import layers, ops

from everstep.config import configurable
from everstep.recipes.transformer_config import TransformerConfig

Block = Callable[..., Any]
"""`attention(x, config, causal)` and `feed_forward(x, config)`."""


@configurable
def self_attention(x: Any, config: TransformerConfig, causal: bool) -> Any:
    """Returns multi-head attention over all tokens; with `causal`, over each token and those before it."""
    attention = layers.MultiHeadAttention(config.heads, config.width // config.heads, dropout=config.dropout)
    return attention(x, x, use_causal_mask=causal)


@configurable
def feed_forward(x: Any, config: TransformerConfig) -> Any:
    """Returns two dense layers applied to each token."""
    return layers.Dense(config.width)(layers.Dense(config.hidden, activation="gelu")(x))


@configurable
def transformer(
    vocabulary: int,
    length: int,
    config: TransformerConfig,
    causal: bool,
    outputs: int | None = None,
    attention: Block = self_attention,
    feed_forward: Block = feed_forward,
) -> keras.Model:
    """Returns a model from tokens (batch, length) to logits (batch, length, outputs).

    Args:
      vocabulary: How many tokens there are.
      length: Tokens in a sequence.
      config: The width, depth and other sizes of the model.
      causal: Whether a token sees only itself and those before it, as a language model must.
      outputs: How many classes a token may have; None for the vocabulary.
      attention: Builds the blocks that mix tokens.
      feed_forward: Builds the blocks that are applied to each token alone.
    """
    tokens = keras.Input((length,), dtype="int32", name="tokens")
    positions = ops.cumsum(ops.ones_like(tokens), axis=1) - 1
    x = layers.Embedding(vocabulary, config.width)(tokens) + layers.Embedding(length, config.width)(positions)
    for _ in range(config.depth):
        x = x + _dropped(attention(_normed(x), config=config, causal=causal), config)
        x = x + _dropped(feed_forward(_normed(x), config=config), config)
    logits = layers.Dense(outputs or vocabulary, dtype="float32")(_normed(x))
    return keras.Model(tokens, logits, name="transformer")


def _normed(x: Any) -> Any:
    return layers.LayerNormalization(epsilon=1e-5)(x)


def _dropped(x: Any, config: TransformerConfig) -> Any:
    return layers.Dropout(config.dropout)(x) if config.dropout else x
