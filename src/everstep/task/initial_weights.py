"""Weights to start from, out of a file."""

import os

import keras

from everstep.errors import UsageError


def load_weights(model: keras.Model, path: str) -> None:
    """Loads weights from a `.weights.h5` or `.keras` file.

    Raises:
      UsageError: The file does not exist, is of another kind, or does not fit the model.
    """
    if not os.path.isfile(path):
        raise UsageError(f"task.init_checkpoint: no such file: {path!r}")
    if not path.endswith((".weights.h5", ".keras")):
        raise UsageError(f"task.init_checkpoint: expected a .keras or .weights.h5 file, received {path!r}")
    try:
        model.load_weights(path)
    except ValueError as error:
        raise UsageError(f"task.init_checkpoint: {path!r} does not fit the model: {error}") from error
