"""What of a batch a device can compute with: numbers; text and Python objects are refused before the first step."""

from typing import Any

import keras
import numpy as np

from everstep.data import is_text, nest
from everstep.errors import UsageError
from everstep.task import unpack


def on_host(leaf: Any) -> np.ndarray:
    """Returns an array as it is placed on the device: float64 becomes Keras's float type.

    Raises:
      UsageError: No device computes with arrays of this dtype.
    """
    array = np.asarray(leaf)
    if is_text(array) and keras.backend.backend() == "tensorflow":
        return array
    _check_dtype("dtype of a batch", array)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


def _check_dtype(key: str, array: np.ndarray) -> None:
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        raise UsageError(
            "no device computes with arrays of this dtype",
            key=key,
            received=str(array.dtype),
            remedy="convert them to numbers",
        )


def check_leaves(batch: Any) -> None:
    """Refuses what no device computes with: text, Python objects, dates; TensorFlow accepts text as features.

    Raises:
      UsageError: The batch holds some; the key says where.
    """
    if batch is None:
        return
    for part, name in zip(unpack(batch), ("x", "y", "sample_weight"), strict=True):
        for path, leaf in nest.walk(part):
            array = np.asarray(leaf)
            if is_text(array):
                _check_text(f"{name}{path}", array, name)
            elif array.dtype == object:
                raise UsageError(
                    f"holds Python objects, such as {_example(array)}",
                    key=f"{name}{path}",
                    remedy="pass numbers; pad rows of different lengths, as keras.utils.pad_sequences does",
                )
            else:
                _check_dtype(f"{name}{path}", array)


def _check_text(key: str, array: np.ndarray, name: str) -> None:
    text = f"holds text, such as {_example(array)}"
    if name != "x":
        raise UsageError(
            text,
            key=key,
            remedy="labels must be numbers; number the classes first: names, y = np.unique(y, return_inverse=True)"
            if name == "y"
            else "weights must be numbers",
        )
    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"{text}, which the backend {keras.backend.backend()!r} cannot compute with",
            key=key,
            remedy="convert it to numbers before it reaches the model, with keras.layers.TextVectorization or "
            "StringLookup called on the data, as in dataset.map; inside the model they work only on TensorFlow",
        )


def _example(array: np.ndarray) -> str:
    shown = repr(array.reshape(-1)[:1].tolist()[0])
    return shown if len(shown) < 40 else f"{shown[:37]}..."
