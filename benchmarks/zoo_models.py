"""The models of the zoo, as users write them: common architectures, none of them tuned for one of the loops.

Each is a function that returns a compiled model and samples of its shapes. Half precision, Adam and a metric, because
that is how such models are trained. `small=True` makes the same layers of a size that a test can afford.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
from keras import layers, ops


class Trained(NamedTuple):
    """A compiled model, and what it is trained on."""

    model: keras.Model
    x: Any
    y: np.ndarray
    batch: int


def build(name: str, small: bool = False, batches: int = 8) -> Trained:
    """Returns a new model of the zoo with samples for so many batches.

    Args:
      name: A key of `MODELS`.
      small: Whether to build it in a size for tests.
      batches: How many batches of samples to make.
    """
    keras.utils.set_random_seed(0)
    if name not in FLOAT32:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    return MODELS[name](small, batches, np.random.default_rng(0))


def _classifier(model: keras.Model, images: np.ndarray, classes: int, batch: int, random: Any) -> Trained:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-4), loss, metrics=["accuracy"])
    return Trained(model, images, random.integers(0, classes, len(images), np.int32), batch)


def _application(create: Callable[..., keras.Model], side: int, batch: int) -> Callable[..., Trained]:
    """Returns the function that builds a model of `keras.applications` without its softmax, on uint8 images."""

    def made(small: bool, batches: int, random: Any) -> Trained:
        size, rows = (32, 2) if small else (side, batch)
        images = random.integers(0, 256, (batches * rows, size, size, 3), np.uint8)
        inputs = keras.Input((size, size, 3), dtype="uint8")
        body = create(weights=None, classes=100, classifier_activation=None, input_shape=(size, size, 3))
        scaled = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
        return _classifier(keras.Model(inputs, body(scaled)), images, 100, rows, random)

    return made


def _efficientnet(**options: Any) -> keras.Model:
    return keras.applications.EfficientNetV2B0(include_preprocessing=False, **options)


def _convnext(**options: Any) -> keras.Model:
    return keras.applications.ConvNeXtTiny(include_preprocessing=False, **options)


def _mobilenet(**options: Any) -> keras.Model:
    return keras.applications.MobileNetV3Large(include_preprocessing=False, **options)


def _normalized(x: Any, filters: int, kernel: int = 3) -> Any:
    x = layers.Conv2D(filters, kernel, padding="same", use_bias=False)(x)
    return layers.Activation("relu")(layers.BatchNormalization()(x))


def _unet(small: bool, batches: int, random: Any) -> Trained:
    """Segmentation: three levels, transposed convolutions on the way up."""
    side, rows, width = (32, 2, 8) if small else (128, 64, 32)
    inputs = keras.Input((side, side, 3), dtype="uint8")
    x, skipped = layers.Rescaling(1 / 255)(inputs), []
    for level in range(3):
        x = _normalized(_normalized(x, width << level), width << level)
        skipped.append(x)
        x = layers.MaxPooling2D()(x)
    x = _normalized(_normalized(x, width << 3), width << 3)
    for level in reversed(range(3)):
        x = layers.Conv2DTranspose(width << level, 2, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, skipped[level]])
        x = _normalized(_normalized(x, width << level), width << level)
    model = keras.Model(inputs, layers.Conv2D(4, 1, dtype="float32")(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    images = random.integers(0, 256, (batches * rows, side, side, 3), np.uint8)
    return Trained(model, images, random.integers(0, 4, (batches * rows, side, side), np.int32), rows)


class _Positions(layers.Layer):
    """Adds a trained vector to each position."""

    def build(self, shape: Any) -> None:
        self.vectors = self.add_weight(shape=(1, *shape[1:]), initializer="random_normal", name="vectors")

    def call(self, x: Any) -> Any:
        return x + ops.cast(self.vectors, x.dtype)


def _encoder(x: Any, depth: int, heads: int, width: int, dropout: float, causal: bool = False) -> Any:
    """Returns a transformer whose blocks normalize first."""
    for _ in range(depth):
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=causal)
        x = x + layers.Dropout(dropout)(y)
        y = layers.LayerNormalization(epsilon=1e-6)(x)
        y = layers.Dense(width)(layers.Dense(4 * width, activation="gelu")(y))
        x = x + layers.Dropout(dropout)(y)
    return layers.LayerNormalization(epsilon=1e-6)(x)


def _vit(small: bool, batches: int, random: Any) -> Trained:
    """ViT-S/16 without a class token."""
    side, rows, width, depth, heads = (32, 2, 64, 2, 2) if small else (224, 128, 384, 12, 6)
    inputs = keras.Input((side, side, 3), dtype="uint8")
    x = layers.Conv2D(width, 16, strides=16)(layers.Rescaling(1 / 127.5, offset=-1)(inputs))
    x = _Positions()(layers.Reshape((-1, width))(x))
    x = layers.GlobalAveragePooling1D()(_encoder(x, depth, heads, width, 0.0))
    images = random.integers(0, 256, (batches * rows, side, side, 3), np.uint8)
    return _classifier(keras.Model(inputs, layers.Dense(100, dtype="float32")(x)), images, 100, rows, random)


def _bert(small: bool, batches: int, random: Any) -> Trained:
    """An encoder of BERT-base's size that classifies texts of 512 tokens, with dropout."""
    length, rows, width, depth, heads, vocabulary = (32, 2, 64, 2, 2, 100) if small else (512, 32, 768, 12, 12, 30522)
    inputs = keras.Input((length,), dtype="int32")
    x = _Positions()(layers.Embedding(vocabulary, width)(inputs))
    x = _encoder(layers.Dropout(0.1)(layers.LayerNormalization()(x)), depth, heads, width, 0.1)
    x = layers.Dense(2, dtype="float32")(layers.Dense(width, activation="tanh")(x[:, 0]))
    tokens = random.integers(0, vocabulary, (batches * rows, length), np.int32)
    return _classifier(keras.Model(inputs, x), tokens, 2, rows, random)


def _lstm(small: bool, batches: int, random: Any) -> Trained:
    """A language model of two LSTMs."""
    length, rows, width, vocabulary = (16, 2, 16, 100) if small else (128, 64, 512, 10_000)
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    for _ in range(2):
        x = layers.LSTM(width, return_sequences=True)(x)
    model = keras.Model(inputs, layers.Dense(vocabulary, dtype="float32")(x))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), metrics=["accuracy"])
    tokens = random.integers(0, vocabulary, (batches * rows, length + 1), np.int32)
    return Trained(model, tokens[:, :-1], tokens[:, 1:], rows)


def _diffusion(small: bool, batches: int, random: Any) -> Trained:
    """A U-Net that predicts the noise of an image, with attention at two resolutions and group normalization."""
    side, rows, width = (16, 2, 16) if small else (64, 64, 64)

    def residual(x: Any, time: Any, filters: int) -> Any:
        y = layers.Conv2D(filters, 3, padding="same")(layers.Activation("silu")(layers.GroupNormalization(8)(x)))
        y = y + layers.Reshape((1, 1, filters))(layers.Dense(filters)(time))
        y = layers.Conv2D(filters, 3, padding="same")(layers.Activation("silu")(layers.GroupNormalization(8)(y)))
        return y + (x if x.shape[-1] == filters else layers.Conv2D(filters, 1)(x))

    def attended(x: Any) -> Any:
        shape = x.shape[1:]
        y = layers.Reshape((shape[0] * shape[1], shape[2]))(layers.GroupNormalization(8)(x))
        return x + layers.Reshape(shape)(layers.MultiHeadAttention(4, shape[2] // 4)(y, y))

    images, times = keras.Input((side, side, 3)), keras.Input((1,))
    time = layers.Dense(4 * width, activation="silu")(layers.Dense(width, activation="silu")(times))
    x, skipped = layers.Conv2D(width, 3, padding="same")(images), []
    for level in range(3):
        x = residual(x, time, width << level)
        x = attended(x) if level else x
        skipped.append(x)
        x = layers.Conv2D(width << level, 3, strides=2, padding="same")(x)
    x = residual(attended(residual(x, time, width << 2)), time, width << 2)
    for level in reversed(range(3)):
        x = layers.UpSampling2D()(x)
        x = residual(layers.Concatenate()([x, skipped[level]]), time, width << level)
        x = attended(x) if level else x
    model = keras.Model([images, times], layers.Conv2D(3, 3, padding="same", dtype="float32")(x))
    model.compile("adam", "mse")
    pictures = random.standard_normal((batches * rows, side, side, 3), np.float32)
    moments = random.random((batches * rows, 1), np.float32)
    return Trained(model, [pictures, moments], random.standard_normal(pictures.shape, np.float32), rows)


def _tabular(small: bool, batches: int, random: Any) -> Trained:
    """26 columns of categories with 100,000 values each, and 13 of numbers, as in click prediction."""
    rows, values, width, columns = (8, 50, 4, 3) if small else (4096, 100_000, 16, 26)
    categories, numbers = keras.Input((columns,), dtype="int32"), keras.Input((13,))
    vectors = [layers.Embedding(values, width)(categories[:, column]) for column in range(columns)]
    x = layers.Concatenate()([*vectors, layers.Dense(width, activation="relu")(numbers)])
    for units in (1024, 512, 256):
        x = layers.BatchNormalization()(layers.Dense(units, activation="relu")(x))
    model = keras.Model([categories, numbers], layers.Dense(1, dtype="float32")(x))
    model.compile("adam", keras.losses.BinaryCrossentropy(from_logits=True), metrics=[keras.metrics.BinaryAccuracy()])
    data = [
        random.integers(0, values, (batches * rows, columns), np.int32),
        random.random((batches * rows, 13), np.float32),
    ]
    return Trained(model, data, random.integers(0, 2, (batches * rows, 1)).astype(np.float32), rows)


def _gpt2(small: bool, batches: int, random: Any) -> Trained:
    """GPT-2 with 124 M parameters, of Keras's own layers; its attention is causal."""
    length, rows, width, depth, heads, vocabulary = (32, 2, 64, 2, 2, 100) if small else (1024, 16, 768, 12, 12, 50257)
    inputs = keras.Input((length,), dtype="int32")
    table = layers.ReversibleEmbedding(vocabulary, width, reverse_dtype="bfloat16")
    x = _encoder(_Positions()(table(inputs)), depth, heads, width, 0.0, causal=True)
    model = keras.Model(inputs, table(x, reverse=True))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    tokens = random.integers(0, vocabulary, (batches * rows, length + 1), np.int32)
    return Trained(model, tokens[:, :-1], tokens[:, 1:], rows)


def _mlp(small: bool, batches: int, random: Any) -> Trained:
    rows = 8 if small else 128
    model = keras.Sequential([keras.Input((784,)), layers.Dense(512, activation="relu"), layers.Dense(10)])
    return _classifier(model, random.random((batches * rows, 784), np.float32), 10, rows, random)


FLOAT32 = ("LSTM", "tabular", "MLP")
"""Models in single precision."""

MODELS: dict[str, Callable[..., Trained]] = {
    "ResNet50": _application(keras.applications.ResNet50, 160, 128),
    "EfficientNetV2-B0": _application(_efficientnet, 160, 128),
    "ConvNeXt-Tiny": _application(_convnext, 160, 64),
    "MobileNetV3": _application(_mobilenet, 160, 128),
    "U-Net": _unet,
    "ViT-S/16": _vit,
    "BERT-base": _bert,
    "LSTM": _lstm,
    "diffusion U-Net": _diffusion,
    "tabular": _tabular,
    "GPT-2 124M": _gpt2,
    "MLP": _mlp,
}
"""The functions that build the models, by name."""
