"""A user's callbacks that write files: into the run's folder, wherever they were told to."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras

from everstep.components.run_folder import RunFolder
from everstep.errors import UsageError


def redirected(callbacks: Sequence[Any] | None, folder: RunFolder) -> list[keras.callbacks.Callback]:
    """Returns the callbacks; ModelCheckpoint writes to `model_checkpoints/`, TensorBoard to `logs/`.

    The run saves itself, with everything needed to go on, in `training/checkpoints`; the files of a ModelCheckpoint are
    beside that, for whoever wants them.

    Raises:
      UsageError: One is no Keras callback.
    """
    listed = keras.tree.flatten(list(callbacks or ()))
    for callback in listed:
        if not isinstance(callback, keras.callbacks.Callback):
            raise UsageError(f"get_callbacks() returned {callback!r}, expected Keras callbacks")
        if isinstance(callback, keras.callbacks.ModelCheckpoint):
            target = folder.path / "model_checkpoints"
            target.mkdir(exist_ok=True)
            callback.filepath = str(target / Path(str(callback.filepath)).name)
        if isinstance(callback, keras.callbacks.TensorBoard):
            callback.log_dir = str(folder.path / "logs" / "callback")
    return listed
