"""The MNIST tasks: pixels in [0, 1], ten classes."""

from typing import Any

import keras
import numpy as np
from keras import layers

from everstep import ClassificationTask
from everstep.recipes.mnist_data import load_mnist
from everstep.task import ImageClassificationTask


class MnistTask(ClassificationTask):
    """Classifies images of ten digits."""

    def build_model(self) -> keras.Model:
        """Returns the dense or the convolutional classifier."""
        return _classifier(self.task_config.model, (28, 28))

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the shipped images and labels of the split that `params` are for."""
        return _digits(params.is_training, self.task_config.num_samples)


class AugmentedMnistTask(ImageClassificationTask):
    """Classifies images of ten digits, each rotated and shifted a little at random in every step."""

    def build_classifier(self) -> keras.Model:
        """Returns the dense or the convolutional classifier."""
        return _classifier(self.task_config.model, (28, 28, 1))

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the shipped images, with the channel axis that augmentation layers expect, and labels."""
        images, labels = _digits(params.is_training, self.task_config.num_samples)
        return images[..., np.newaxis], labels


def _digits(training: bool, num_samples: int | None) -> tuple[np.ndarray, np.ndarray]:
    images, labels = load_mnist("train" if training else "test")
    count = num_samples if training else None
    return (images[:count] / np.float32(255)).astype("float32"), labels[:count].astype("int32")


def _classifier(config: Any, shape: tuple[int, ...]) -> keras.Model:
    stem = _convolutions() if config.kind == "cnn" else [layers.Flatten()]
    head = [layers.Dense(config.units, activation="relu"), layers.Dropout(config.dropout), layers.Dense(10)]
    return keras.Sequential([keras.Input(shape), *stem, *head], name="mnist")


def _convolutions() -> list[keras.Layer]:
    return [
        layers.Reshape((28, 28, 1)),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
    ]
