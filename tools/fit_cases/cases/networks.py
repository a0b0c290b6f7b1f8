"""Layers: each between an input and a dense layer, in a regression."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
from keras import layers, regularizers
from tools.fit_cases import rows
from tools.fit_cases.case import SAMPLES, Call, Y, call, case, cases, compiled, labels, numbers, stack, tokens

VECTOR, SEQUENCE, IMAGE = (6,), (5, 4), (6, 6, 2)

Network = tuple[tuple[int, ...], Callable[[], list[Any]]]
"""The shape of a sample, and what makes the layers."""

LAYERS: dict[str, Network] = {
    "Dense": (VECTOR, lambda: [layers.Dense(8, "relu")]),
    "Dense with regularizers": (VECTOR, lambda: [layers.Dense(8, kernel_regularizer="l2", bias_regularizer="l1")]),
    "Dense with activity regularizer": (VECTOR, lambda: [layers.Dense(8, activity_regularizer=regularizers.L2(0.1))]),
    "Dense with constraint": (VECTOR, lambda: [layers.Dense(8, kernel_constraint=keras.constraints.MaxNorm(0.5))]),
    "Dense, frozen": (VECTOR, lambda: [layers.Dense(8, trainable=False)]),
    "Dense with LoRA": (VECTOR, lambda: [layers.Dense(8, lora_rank=2)]),
    "Dense in bfloat16": (VECTOR, lambda: [layers.Dense(8, dtype="mixed_bfloat16")]),
    "Dense in float64": (VECTOR, lambda: [layers.Dense(8, dtype="float64")]),
    "EinsumDense": (SEQUENCE, lambda: [layers.EinsumDense("abc,cd->abd", (5, 8), bias_axes="d")]),
    "Conv1D": (SEQUENCE, lambda: [layers.Conv1D(4, 3)]),
    "Conv2D": (IMAGE, lambda: [layers.Conv2D(4, 3, activation="relu")]),
    "Conv3D": ((4, 4, 4, 1), lambda: [layers.Conv3D(2, 2)]),
    "Conv2DTranspose": (IMAGE, lambda: [layers.Conv2DTranspose(3, 3)]),
    "SeparableConv2D": (IMAGE, lambda: [layers.SeparableConv2D(4, 3)]),
    "DepthwiseConv2D": (IMAGE, lambda: [layers.DepthwiseConv2D(3)]),
    "MaxPooling2D": (IMAGE, lambda: [layers.Conv2D(4, 3), layers.MaxPooling2D()]),
    "AveragePooling1D": (SEQUENCE, lambda: [layers.Dense(4), layers.AveragePooling1D(2)]),
    "GlobalMaxPooling2D": (IMAGE, lambda: [layers.Conv2D(4, 3), layers.GlobalMaxPooling2D()]),
    "UpSampling2D": (IMAGE, lambda: [layers.Conv2D(4, 3), layers.UpSampling2D()]),
    "BatchNormalization": (VECTOR, lambda: [layers.Dense(8), layers.BatchNormalization()]),
    "BatchNormalization of images": (IMAGE, lambda: [layers.Conv2D(4, 3), layers.BatchNormalization()]),
    "LayerNormalization": (VECTOR, lambda: [layers.Dense(8), layers.LayerNormalization()]),
    "GroupNormalization": (IMAGE, lambda: [layers.Conv2D(4, 3), layers.GroupNormalization(2)]),
    "RMSNormalization": (VECTOR, lambda: [layers.Dense(8), layers.RMSNormalization()]),
    "UnitNormalization": (VECTOR, lambda: [layers.Dense(8), layers.UnitNormalization()]),
    "LSTM": (SEQUENCE, lambda: [layers.LSTM(4)]),
    "GRU": (SEQUENCE, lambda: [layers.GRU(4)]),
    "SimpleRNN": (SEQUENCE, lambda: [layers.SimpleRNN(4, return_sequences=True)]),
    "Bidirectional": (SEQUENCE, lambda: [layers.Bidirectional(layers.GRU(3))]),
    "stacked cells": (SEQUENCE, lambda: [layers.RNN([layers.LSTMCell(3), layers.GRUCell(2)])]),
    "TimeDistributed": (SEQUENCE, lambda: [layers.TimeDistributed(layers.Dense(3))]),
    "ConvLSTM1D": ((3, 5, 2), lambda: [layers.ConvLSTM1D(2, 3)]),
    "PReLU": (VECTOR, lambda: [layers.Dense(8), layers.PReLU()]),
    "Rescaling, Reshape, Permute": (
        VECTOR,
        lambda: [layers.Rescaling(0.5), layers.Reshape((2, 3)), layers.Permute((2, 1))],
    ),
    "Lambda": (VECTOR, lambda: [layers.Lambda(lambda x: keras.ops.tanh(x) * 2.0)]),
    "a layer with add_loss": (VECTOR, lambda: [Centred(8)]),
    "a layer that counts": (VECTOR, lambda: [layers.Dense(8), Counting()]),
}

ASSIGNING_LAYERS: dict[str, Network] = {
    "SpectralNormalization": (VECTOR, lambda: [layers.SpectralNormalization(layers.Dense(8))]),
}

RANDOM_LAYERS: dict[str, Network] = {
    "Dropout": (VECTOR, lambda: [layers.Dense(8), layers.Dropout(0.5)]),
    "LSTM with dropout": (SEQUENCE, lambda: [layers.LSTM(4, dropout=0.3)]),
}
"""Those that draw from PyTorch's own generator there."""

SEEDED_LAYERS: dict[str, Network] = {
    "SpatialDropout1D": (SEQUENCE, lambda: [layers.Dense(8), layers.SpatialDropout1D(0.5)]),
    "AlphaDropout": (VECTOR, lambda: [layers.Dense(8), layers.AlphaDropout(0.5)]),
    "GaussianNoise": (VECTOR, lambda: [layers.GaussianNoise(0.5)]),
    "GaussianDropout": (VECTOR, lambda: [layers.GaussianDropout(0.5)]),
    "a layer with a SeedGenerator": (VECTOR, lambda: [layers.Dense(8), Noisy()]),
    "RandomFlip, RandomTranslation": (IMAGE, lambda: [layers.RandomFlip(), layers.RandomTranslation(0.2, 0.2)]),
    "RandomContrast, RandomBrightness": (
        IMAGE,
        lambda: [layers.RandomContrast(0.3, value_range=(-3, 3)), layers.RandomBrightness(0.2, value_range=(-3, 3))],
    ),
}


class Centred(layers.Dense):
    """Adds a loss that depends on its outputs."""

    def call(self, inputs: Any, training: Any = None) -> Any:
        """Computes the outputs, and adds the loss."""
        outputs = super().call(inputs)
        self.add_loss(0.1 * keras.ops.mean(outputs) ** 2)
        return outputs


class Counting(layers.Layer):
    """Has a state that every step changes, and that the next one depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.add_weight(name="count", shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any) -> Any:
        """Counts."""
        self.count.assign(self.count + 1.0)
        return inputs * (1.0 + 0.1 * self.count)


class Noisy(layers.Layer):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(5)

    def call(self, inputs: Any) -> Any:
        """Adds noise."""
        return inputs + 0.1 * keras.random.normal(keras.ops.shape(inputs), seed=self.seeds)


def _network(shape: tuple[int, ...], build: Callable[[], list[Any]]) -> Callable[[], Call]:
    def made() -> Call:
        model = stack(shape, *build(), layers.Flatten(), layers.Dense(1))
        return call(compiled(model, metrics=["mae"]), numbers(SAMPLES, *shape), Y)

    return made


cases("layers", {name: _network(*one) for name, one in LAYERS.items()})
cases("layers", {name: _network(*one) for name, one in SEEDED_LAYERS.items()})
cases("layers", {name: _network(*one) for name, one in ASSIGNING_LAYERS.items()}, differs={"jax": rows.ASSIGNED})
cases("layers", {name: _network(*one) for name, one in RANDOM_LAYERS.items()}, differs={"torch": rows.DROPOUT})


# -- with other data ---------------------------------------------------------------------------------------------------

WORDS = tokens(SAMPLES, 7, 12)


def _text(*hidden: Any, mask: bool = False, **kwargs: Any) -> Call:
    model = stack((7,), layers.Embedding(12, 4, mask_zero=mask), *hidden, dtype="int32")
    compiled(model, loss="sparse_categorical_crossentropy", metrics=["accuracy"], **kwargs)
    return call(model, WORDS, labels(SAMPLES, 3), validation_split=0.2)


cases(
    "layers",
    {
        "Embedding": lambda: _text(layers.Flatten(), layers.Dense(3, "softmax")),
        "Embedding with a mask, LSTM": lambda: _text(layers.LSTM(4), layers.Dense(3, "softmax"), mask=True),
        "Embedding with a mask, pooling": lambda: _text(
            layers.GlobalAveragePooling1D(), layers.Dense(3, "softmax"), mask=True
        ),
    },
    differs={"tensorflow": rows.EMBEDDINGS},
)


cases(
    "layers",
    {"Embedding with SGD": lambda: _text(layers.Flatten(), layers.Dense(3, "softmax"), optimizer="sgd")},
)


@case(
    "layers", "Embedding with a mask, a label for each word", differs={"jax": rows.MASKS, "tensorflow": rows.EMBEDDINGS}
)
def masked_labels():
    hidden = [layers.GRU(4, return_sequences=True), layers.Dense(12, "softmax")]
    model = stack((7,), layers.Embedding(12, 4, mask_zero=True), *hidden, dtype="int32")
    compiled(model, loss="sparse_categorical_crossentropy", metrics=["accuracy"], weighted_metrics=["accuracy"])
    return call(model, WORDS, np.roll(WORDS, -1, axis=1), validation_split=0.2)


@case("layers", "Masking, LSTM, an output for each step", differs={"jax": rows.MASKS})
def masked_steps():
    x = numbers(SAMPLES, 5, 4) * (np.arange(5) < labels(SAMPLES, 5)[:, None] + 1)[..., None]
    model = stack((5, 4), layers.Masking(), layers.LSTM(4, return_sequences=True), layers.Dense(1))
    return call(compiled(model, metrics=["mae"]), x, x.sum(-1, keepdims=True))


@case("layers", "GRU, stateful", differs={"jax": rows.STATEFUL})
def stateful():
    inputs = keras.Input(batch_shape=(8, *SEQUENCE))
    model = keras.Sequential([inputs, layers.GRU(4, stateful=True), layers.Dense(1)])
    return call(compiled(model), numbers(SAMPLES, *SEQUENCE), Y)


@case("layers", "Normalization, adapted")
def adapted_normalization():
    normalization = layers.Normalization()
    normalization.adapt(numbers(SAMPLES, *VECTOR) * 3 + 1)
    return call(compiled(stack(VECTOR, normalization, layers.Dense(1))), numbers(SAMPLES, *VECTOR), Y)


@case("layers", "Discretization, CategoryEncoding")
def bins():
    hidden = [layers.Discretization([-1.0, 0.0, 1.0]), layers.CategoryEncoding(4, "multi_hot")]
    return call(compiled(stack(VECTOR, *hidden, layers.Dense(1))), numbers(SAMPLES, *VECTOR), Y)


@case("layers", "MultiHeadAttention")
def self_attention():
    inputs = keras.Input((5, 4))
    attended = layers.MultiHeadAttention(2, 3)(inputs, inputs)
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(layers.Add()([inputs, attended]))))
    return call(compiled(model, "sgd"), numbers(SAMPLES, 5, 4), Y)


@case("layers", "MultiHeadAttention, causal, with dropout", differs={"torch": rows.DROPOUT})
def causal_attention():
    inputs = keras.Input((5, 4))
    attended = layers.MultiHeadAttention(2, 3, dropout=0.3)(inputs, inputs, use_causal_mask=True)
    model = keras.Model(inputs, layers.Dense(1)(layers.Flatten()(attended)))
    return call(compiled(model, "sgd"), numbers(SAMPLES, 5, 4), Y)


@case("layers", "GroupedQueryAttention")
def grouped_attention():
    inputs = keras.Input((5, 4))
    attended = layers.GroupQueryAttention(3, 4, 2)(inputs, inputs)
    return call(
        compiled(keras.Model(inputs, layers.Dense(1)(layers.Flatten()(attended))), "sgd"), numbers(SAMPLES, 5, 4), Y
    )


@case("layers", "Attention, AdditiveAttention")
def plain_attention():
    inputs = keras.Input((5, 4))
    attended = layers.Attention(use_scale=True)([inputs, inputs])
    attended = layers.AdditiveAttention()([attended, inputs])
    return call(
        compiled(keras.Model(inputs, layers.Dense(1)(layers.Flatten()(attended))), "sgd"), numbers(SAMPLES, 5, 4), Y
    )
