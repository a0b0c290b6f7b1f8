"""The MNIST task: pixels in [0, 1], ten classes."""

from typing import Any

import keras
import numpy as np
from keras import layers

from everstep.task.classification import ClassificationTask
from everstep.zoo.mnist_data import load_mnist


class MnistTask(ClassificationTask):
    """Tells ten digits apart."""

    def build_model(self) -> keras.Model:
        """Returns the dense or the convolutional classifier."""
        config = self.task_config.model
        stem = _convolutions() if config.kind == "cnn" else [layers.Flatten()]
        head = [layers.Dense(config.units, activation="relu"), layers.Dropout(config.dropout), layers.Dense(10)]
        return keras.Sequential([keras.Input((28, 28)), *stem, *head], name="mnist")

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns the shipped images and labels of the split that `params` are for."""
        images, labels = load_mnist("train" if params.is_training else "test")
        count = self.task_config.num_samples if params.is_training else None
        return (images[:count] / np.float32(255)).astype("float32"), labels[:count].astype("int32")


def _convolutions() -> list[keras.Layer]:
    return [
        layers.Reshape((28, 28, 1)),
        layers.Conv2D(16, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Conv2D(32, 3, padding="same", activation="relu"),
        layers.MaxPooling2D(),
        layers.Flatten(),
    ]
