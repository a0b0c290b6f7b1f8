"""The networks of the suites, as Keras 3 models, with data of their shapes."""

import functools
from typing import Any, NamedTuple

import keras
import numpy as np

layers = keras.layers


class Network(NamedTuple):
    """A network, its batch size, and how many steps of it make a round."""

    batch: int
    steps: int
    hidden: int = 0


NETWORKS = {
    "784-32-10, batch 32": Network(32, 2400, 32),
    "784-512-10, batch 128": Network(128, 600, 512),
    "CNN, batch 32": Network(32, 200),
    "LSTM, batch 32": Network(32, 200),
    "transformer, batch 16": Network(16, 200),
}

VOCABULARY, LENGTH = 1000, 64


def build(name: str) -> keras.Model:
    """Returns a new network that computes logits."""
    kind = name.partition(",")[0]
    if kind == "CNN":  # that of mnist/cnn
        convolutions = [
            layers.Reshape((28, 28, 1)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
        ]
        head = [layers.Dense(128, activation="relu"), layers.Dropout(0.1, seed=1), layers.Dense(10)]
        return keras.Sequential([keras.Input((784,)), *convolutions, *head])
    if kind == "LSTM":
        parts = [layers.Embedding(VOCABULARY, 32), layers.LSTM(64), layers.Dense(10)]
        return keras.Sequential([keras.Input((LENGTH,), dtype="int32"), *parts])
    if kind == "transformer":
        return _transformer()
    hidden = NETWORKS[name].hidden
    return keras.Sequential([keras.Input((784,)), layers.Dense(hidden, activation="relu"), layers.Dense(10)])


def _transformer(width: int = 64, blocks: int = 2) -> keras.Model:
    """A decoder that predicts each token from those before it."""
    tokens = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(VOCABULARY, width)(tokens)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, width // 4)(y, y, use_causal_mask=True)
        y = layers.LayerNormalization()(x)
        x = x + layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
    return keras.Model(tokens, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))


@functools.cache
def data(name: str, batches: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns random samples for so many batches."""
    random, rows = np.random.default_rng(0), batches * NETWORKS[name].batch
    kind = name.partition(",")[0]
    if kind == "transformer":
        tokens = random.integers(0, VOCABULARY, (rows, LENGTH + 1), np.int32)
        return tokens[:, :-1], tokens[:, 1:]
    labels = random.integers(0, 10, rows, np.int32)
    if kind == "LSTM":
        return random.integers(0, VOCABULARY, (rows, LENGTH), np.int32), labels
    return random.random((rows, 784), np.float32), labels


def loss() -> Any:
    """Returns the loss of every network."""
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)
