"""The data of the digits experiments. Imports no Keras."""

import importlib

import numpy as np

from everstep.errors import missing_extra

TRAINING_IMAGES = 1200


def load_digits(training: bool, classes: list[str], held_out: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns images (n, 64) from 0 to 1 and labels, of the first 1,200 (in a fixed shuffled order) or the last 597.

    Args:
      training: True for the first 1,200, False for the last 597.
      classes: The digits to keep; label 0 is the first of them.
      held_out: So many of the 1,200, the last of them, are returned in place of the 597.

    Raises:
      UsageError: scikit-learn is not installed.
    """
    try:
        datasets = importlib.import_module("sklearn.datasets")
    except ImportError as error:
        raise missing_extra("scikit-learn", "sklearn", "the digits data") from error
    images, digits = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(digits))
    end = TRAINING_IMAGES - held_out
    part = order[:end] if training else order[end : TRAINING_IMAGES if held_out else None]
    places = {int(name): label for label, name in enumerate(classes)}
    kept = np.asarray([index for index in part if int(digits[index]) in places])
    labels = np.asarray([places[int(digits[index])] for index in kept], "int32")
    return (images[kept] / 16).astype("float32"), labels
