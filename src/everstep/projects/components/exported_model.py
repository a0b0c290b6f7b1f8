"""The forms that a model is exported in: a SavedModel, or a PyTorch program."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.data import load_tensorflow
from everstep.errors import TrainingError
from everstep.export import SAVED_MODEL as _SAVED_MODEL
from everstep.export import ExportedProgram, declared_inputs, saved_model, serving_format

SAVED_MODEL = "savedmodel"
"""The name of a SavedModel in a project's `exported/`."""


class ExportedModel:
    """An exported SavedModel, usable on every backend.

        model = ExportedModel("runs/baseline/exported/savedmodel", ["float32"])
        y_pred = model.predict(x)

    Args:
      path: The SavedModel.
      dtypes: The types of its inputs, flat; None to pass them unchanged.
    """

    def __init__(self, path: str | Path, dtypes: Sequence[str] | None = None) -> None:
        self._tf, self._dtypes = load_tensorflow("evaluating a SavedModel"), dtypes
        with saved_model.quiet():
            self._loaded = self._tf.saved_model.load(str(path))

    def predict(self, x: Any) -> Any:
        """Returns the predictions for a batch of inputs, as NumPy arrays in the model's nesting."""
        flat = keras.tree.flatten(x)
        dtypes = self._dtypes or [np.asarray(leaf).dtype.name for leaf in flat]
        tensors = [self._tf.cast(leaf, dtype) for leaf, dtype in zip(flat, dtypes, strict=True)]
        outputs = self._loaded.serve(keras.tree.pack_sequence_as(x, tensors))
        return keras.tree.map_structure(np.asarray, outputs)

    def give_weights(self, model: keras.Model) -> None:
        """Assigns the exported weights to a model.

        Raises:
          TrainingError: They belong to another model.
        """
        pairs = [
            (model.trainable_variables, self._loaded.trainable_variables),
            (model.non_trainable_variables, self._loaded.non_trainable_variables),
        ]
        if any([tuple(v.shape) for v in own] != [tuple(v.shape) for v in stored] for own, stored in pairs):
            raise TrainingError(
                "the exported model has other weights than get_compiled_model() builds", remedy="export it again"
            )
        for own, stored in pairs:
            for variable, value in zip(own, stored, strict=True):
                variable.assign(np.asarray(value))


def load_exported(path: str | Path, dtypes: Sequence[str] | None = None) -> ExportedModel | ExportedProgram:
    """Loads an exported model, on every backend.

    Args:
      path: The SavedModel, or the file of a PyTorch program.
      dtypes: The types of its inputs, flat; None to pass them unchanged.
    """
    return ExportedProgram(path, dtypes) if Path(path).suffix == ".pt2" else ExportedModel(path, dtypes)


def model_name() -> str:
    """Returns the name of the model in `exported/` on this backend."""
    name = serving_format()[0]
    return SAVED_MODEL if name == _SAVED_MODEL else name


def write_model(model: keras.Model, directory: Path, sample: Any) -> str:
    """Writes the model, loaded again and compared; returns its name in the directory."""
    _, write = serving_format()
    write(model, directory / model_name(), sample)
    return model_name()


def input_dtypes(model: keras.Model, sample: Any) -> list[str]:
    """Returns the types of the model's inputs: as it declares them, else those of the sample."""
    return [str(each.dtype) for each in declared_inputs(model, sample) or keras.tree.flatten(sample)]
