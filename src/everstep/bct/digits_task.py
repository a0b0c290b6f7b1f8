"""The task of the digits experiments, and their data."""

import importlib
from typing import Any

import keras
import numpy as np
from keras import layers

from everstep.bct.task import BCTTask
from everstep.errors import UsageError, missing_extra

_TRAINING = 1200


class DigitsTask(BCTTask):
    """Tells 8×8 digits apart."""

    def build_embedding(self) -> keras.Model:
        """Returns a network with one hidden layer."""
        model = self.task_config.model
        hidden = layers.Dense(model.units, activation="relu")
        return keras.Sequential([keras.Input((64,)), hidden, layers.Dense(model.embedding_size)], name="digits")

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns images and labels of the split that `params` are for."""
        x, y = load_digits(params.is_training, self.task_config.classes)
        count = self.task_config.num_samples if params.is_training else None
        if count is not None and count > len(x):
            raise UsageError(f"task.num_samples: received {count}, but there are {len(x)} images of these classes")
        return x[:count], y[:count]


def load_digits(training: bool, classes: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 64) from 0 to 1 and labels, of the first 1,200 (in a fixed shuffled order) or the last 597.

    Args:
      training: Which of the two.
      classes: The digits to keep; label 0 is the first of them.

    Raises:
      UsageError: scikit-learn is not installed.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise missing_extra("scikit-learn", "sklearn", "the digits data") from error
    images, digits = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    part = order[:_TRAINING] if training else order[_TRAINING:]
    places = {int(name): label for label, name in enumerate(classes)}
    kept = np.asarray([index for index in part if int(digits[index]) in places])
    labels = np.asarray([places[int(digits[index])] for index in kept], "int32")
    return (images[kept] / 16).astype("float32"), labels
