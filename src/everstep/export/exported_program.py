"""A program of PyTorch that was exported, asked for predictions and for its weights."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.errors import TrainingError, missing_extra


class ExportedProgram:
    """A program of PyTorch.

    Args:
      path: The file.
      dtypes: The types of its inputs, flat; None to hand them over as they are.
    """

    def __init__(self, path: str | Path, dtypes: Sequence[str] | None = None) -> None:
        try:
            self._torch = importlib.import_module("torch")
        except ModuleNotFoundError:
            raise missing_extra("torch", "torch", f"opening {str(path)!r}") from None
        program = self._torch.export.load(str(path))
        self._call, self._weights, self._dtypes = program.module(), program.state_dict, dtypes

    def predict(self, x: Any) -> Any:
        """Returns the answers to a batch of inputs, as NumPy arrays in the model's nesting."""
        flat = [np.asarray(leaf) for leaf in keras.tree.flatten(x)]
        dtypes = self._dtypes or [leaf.dtype.name for leaf in flat]
        tensors = [self._torch.tensor(leaf.astype(dtype)) for leaf, dtype in zip(flat, dtypes, strict=True)]
        with self._torch.no_grad():
            outputs = self._call(keras.tree.pack_sequence_as(x, tensors))
        return keras.tree.map_structure(self._array, outputs)

    def _array(self, tensor: Any) -> np.ndarray:
        return np.asarray((tensor.float() if tensor.dtype == self._torch.bfloat16 else tensor).numpy())

    def give_weights(self, model: keras.Model) -> None:
        """Gives a model the exported weights: what its own losses add depends on them.

        Raises:
          TrainingError: They are those of another model.
        """
        stored = list(self._weights.values())  # in the model's order; the names of layers count on in a process
        if [tuple(v.shape) for v in model.variables] != [tuple(value.shape) for value in stored]:
            raise TrainingError("the exported model has other weights than get_compiled_model() builds: export it anew")
        for variable, value in zip(model.variables, stored, strict=True):
            variable.assign(self._array(value))
