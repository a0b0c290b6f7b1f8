"""`model.keras`: the model with its weights, for Keras on any backend."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras

from everstep import storage
from everstep.engine import late_tensorflow, suspended
from everstep.errors import TrainingError
from everstep.export.comparison import check_same, flat_arrays, live_outputs, same_program
from everstep.keras_internals import serialization_lib


def export_keras(model: keras.Model, path: storage.PathLike, sample: Any) -> None:
    """Writes the model to a `.keras` file, after checking that it loads and has the model's outputs.

    Args:
      model: The trained model.
      path: The file to write, ending in `.keras`; its directory is created.
      sample: One batch of model inputs, NumPy arrays in any nesting.

    Raises:
      TrainingError: The file cannot be loaded without further code, or has other outputs. Nothing is written.
    """
    storage.prepare_directory(Path(path).parent)
    with suspended(), storage.atomic_path(path) as temporary:
        with late_tensorflow.only_if_imported(serialization_lib):
            model.save(temporary)
        loaded = _load_safely(temporary, model)
        if not same_program(model, loaded, sample):
            check_same(model, live_outputs(model, sample), flat_arrays(loaded(sample, training=False)), str(path))


@contextlib.contextmanager
def quiet_about_optimizer() -> Iterator[None]:
    """Inside the block, Keras does not warn that it loads no state of an optimizer: KerasHub's models are compiled."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        yield


def _load_safely(path: Path, model: keras.Model) -> keras.Model:
    """Loads the file as any other process would: in safe mode, without custom objects."""
    try:
        with quiet_about_optimizer():
            return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:
        # Keras wraps the cause in the whole configuration of the model.
        innermost = str(error).rpartition("Exception encountered: ")[2]
        cause = innermost.strip().partition("\n")[0].partition(". ")[0].rstrip(".")
        raise TrainingError(
            f"can be saved but not loaded again without its code: {cause}",
            key="model",
            received=model.name,
            remedy="decorate its classes and functions with @keras.saving.register_keras_serializable(), give them "
            "get_config, and replace Lambda layers by layer classes",
        ) from error
