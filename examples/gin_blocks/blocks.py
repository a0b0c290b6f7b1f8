"""Two blocks for `everstep.recipes.transformer`, brought in by a gin file:

    cd examples/gin_blocks
    everstep train text/tiny --import blocks --gin-file talking_gated.gin

A block is a function from tensor to tensor that is called while the model is built.
"""

import gin
import numpy as np
from keras import layers, ops

import everstep.recipes.transformer  # noqa: F401  (so that gin knows `transformer`)


@gin.configurable
def talking_heads(x, config, causal):
    """Attention whose heads mix their scores, before and after the softmax."""
    length, heads, size = x.shape[1], config.heads, config.width // config.heads
    query, key, value = (layers.Reshape((length, heads, size))(layers.Dense(config.width)(x)) for _ in range(3))
    scores = ops.einsum("bqhd,bkhd->bqkh", query, key) / np.sqrt(size)
    scores = layers.Dense(heads, use_bias=False)(scores)
    if causal:
        scores = scores + np.triu(np.full((length, length), -1e9, "float32"), 1)[:, :, np.newaxis]
    shares = layers.Dense(heads, use_bias=False)(ops.softmax(scores, axis=2))
    mixed = ops.einsum("bqkh,bkhd->bqhd", shares, value)
    return layers.Dense(config.width)(layers.Reshape((length, config.width))(mixed))


@gin.configurable
def gated(x, config, activation="gelu"):
    """A feed-forward block in which one half of the hidden numbers decides how much of the other half passes."""
    gate = layers.Dense(config.hidden, activation=activation)(x)
    return layers.Dense(config.width)(layers.Multiply()([gate, layers.Dense(config.hidden)(x)]))
