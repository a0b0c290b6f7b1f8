"""An exported SavedModel, asked for predictions and for its weights."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.data.tf_data import load_tensorflow
from everstep.errors import TrainingError
from everstep.export import tensorflow_files


class ExportedModel:
    """The model that was exported, whatever backend this process has.

        model = ExportedModel("runs/baseline/exported/savedmodel", ["float32"])
        y_pred = model.predict(x)

    Args:
      path: The SavedModel.
      dtypes: The types of its inputs, flat; None to hand them over as they are.
    """

    def __init__(self, path: str | Path, dtypes: Sequence[str] | None = None) -> None:
        self._tf, self._dtypes = load_tensorflow("evaluating a SavedModel"), dtypes
        with tensorflow_files.quiet():
            self._loaded = self._tf.saved_model.load(str(path))

    def predict(self, x: Any) -> Any:
        """Returns the answers to a batch of inputs, as NumPy arrays in the model's nesting."""
        flat = keras.tree.flatten(x)
        dtypes = self._dtypes or [np.asarray(leaf).dtype.name for leaf in flat]
        tensors = [self._tf.cast(leaf, dtype) for leaf, dtype in zip(flat, dtypes, strict=True)]
        outputs = self._loaded.serve(keras.tree.pack_sequence_as(x, tensors))
        return keras.tree.map_structure(np.asarray, outputs)

    def give_weights(self, model: keras.Model) -> None:
        """Gives a model the exported weights: what its own losses add depends on them.

        Raises:
          TrainingError: They are those of another model.
        """
        pairs = [
            (model.trainable_variables, self._loaded.trainable_variables),
            (model.non_trainable_variables, self._loaded.non_trainable_variables),
        ]
        if any([tuple(v.shape) for v in own] != [tuple(v.shape) for v in stored] for own, stored in pairs):
            raise TrainingError("the exported model has other weights than get_compiled_model() builds: export it anew")
        for own, stored in pairs:
            for variable, value in zip(own, stored, strict=True):
                variable.assign(np.asarray(value))
