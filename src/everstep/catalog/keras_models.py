"""Keras models in `.keras` files, which somebody else may have written: none of what they say is run."""

import importlib
from pathlib import Path
from typing import Any

from everstep.catalog.dataset import Dataset
from everstep.config.problem import show
from everstep.errors import UsageError

_LOADER = "everstep.inference.keras_model"  # imported when a model is: it brings Keras


class KerasModel(Dataset):
    """A model with its weights, not compiled.

    It is loaded as predictions load it: of Keras's own layers, and of classes that the project has decorated with
    `@keras.saving.register_keras_serializable()` and imported; what would run code or read other files is refused.
    """

    suffixes = (".keras",)

    def load(self, path: Path) -> Any:
        """Returns the model."""
        return importlib.import_module(_LOADER).load_keras(path)

    def save(self, value: Any, path: Path) -> None:
        """Writes a model."""
        import keras

        if not isinstance(value, keras.Model):
            raise UsageError(f"expected a keras.Model, received {show(value)}")
        value.save(path)
