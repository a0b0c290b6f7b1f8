"""A model's weights out of a run's checkpoint, or whatever else has all of them."""

import os

import keras

from everstep import storage
from everstep.task.initial.load import load


def load_checkpoint(model: keras.Model, path: storage.PathLike) -> None:
    """Gives a model the weights that a run has saved; all of them, or it is an error and the model is as it was.

    Of a run that averages its weights, the averages: what it evaluates, and exports itself.

    Args:
      model: The model, built.
      path: What `task.init_checkpoint` takes as well: a run directory or its `checkpoints`, of which the newest is
        taken; one checkpoint; a `.keras` or `.weights.h5` file; a TensorFlow checkpoint.

    Raises:
      UsageError: There is nothing, or it has not every weight of this model.
    """
    load(model, os.path.abspath(path), key="checkpoint_path", complete=True)
