"""Small models and samples for them, with every kind of layer that engines treat differently.

All of them map their input to one number, so that one task fits all.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers

VOCABULARY = 16


def mlp(dropout: float = 0.2) -> keras.Model:
    """Dense layers and Dropout."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, "relu"), layers.Dropout(dropout), layers.Dense(1)])


def plain_mlp() -> keras.Model:
    """Dense layers alone: nothing random, no state but weights."""
    return keras.Sequential([keras.Input((4,)), layers.Dense(8, "tanh"), layers.Dense(1)])


def linear(weight: float = 0.5) -> keras.Model:
    """One Dense layer without bias whose weights are known, for arithmetic by hand."""
    dense = layers.Dense(1, use_bias=False, kernel_initializer=keras.initializers.Constant(weight))
    return keras.Sequential([keras.Input((4,)), dense])


def cnn(dropout: float = 0.2) -> keras.Model:
    """A convolution, BatchNormalization and Dropout."""
    return keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(4, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.Dropout(dropout),
            layers.GlobalAveragePooling2D(),
            layers.Dense(1),
        ]
    )


def gru(dropout: float = 0.1) -> keras.Model:
    """A recurrent layer with dropout in it."""
    return keras.Sequential([keras.Input((5, 3)), layers.GRU(6, dropout=dropout), layers.Dense(1)])


def transformer(dropout: float = 0.1) -> keras.Model:
    """Tokens, attention, residuals."""
    tokens = keras.Input((6,), dtype="int32")
    x = layers.Embedding(VOCABULARY, 8)(tokens)
    attention = layers.MultiHeadAttention(2, 4, dropout=dropout)
    attended = attention(layers.LayerNormalization()(x), x, use_causal_mask=True)
    x = layers.Add()([x, attended])
    x = layers.Add()([x, layers.Dense(8, "gelu")(layers.LayerNormalization()(x))])
    return keras.Model(tokens, layers.Dense(1)(layers.GlobalAveragePooling1D()(x)))


class LateModel(keras.Model):
    """A subclassed model: its variables are created on its first input."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = layers.Dense(8, "relu")
        self.dropout = layers.Dropout(0.1)
        self.out = layers.Dense(1)

    def call(self, x: Any, training: bool = False) -> Any:
        """Returns one number per sample."""
        return self.out(self.dropout(self.hidden(x), training=training))


MODELS: dict[str, Callable[..., keras.Model]] = {"mlp": mlp, "cnn": cnn, "gru": gru, "transformer": transformer}
"""The models on which a run must give the same bits for every split into calls; with `dropout=0` nothing is random."""


def samples(model: keras.Model, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs that fit a built model, and targets that can be learned from them."""
    rng = np.random.default_rng(seed)
    shape = (count, *model.input_shape[1:])
    if "int" in model.inputs[0].dtype:
        tokens = rng.integers(0, VOCABULARY, shape).astype("int32")
        return tokens, (tokens.mean(axis=1, keepdims=True) / VOCABULARY).astype("float32")
    x = rng.normal(size=shape).astype("float32")
    return x, x.reshape(count, -1)[:, :3].sum(axis=1, keepdims=True)
