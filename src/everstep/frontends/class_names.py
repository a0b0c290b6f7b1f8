"""Names of classes: those that the user passes, and those that labels of text bring along.

    everstep.fit(model, images, np.array(["cat", "dog", …]))         # classes 0 and 1, in the order of their names
    everstep.fit(model, images, numbers, class_names=["cat", "dog"])

The names go into the run's record, and from there into predictions and reports.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np

from everstep.data import is_arrays, is_text
from everstep.errors import UsageError, nearest
from everstep.run import read

_KEY = "class_names"
_NUMBERED = ("sparse_categorical_crossentropy", "SparseCategoricalCrossentropy")
_OF_TWO = ("binary_crossentropy", "BinaryCrossentropy")


class ClassNames:
    """The names of the classes, and the labels of text by their numbers.

    Args:
      model: The compiled model; its loss decides whether labels are numbers of classes.
      given: What the user passes; None for none.

    Attributes:
      names: The names; empty while none are known.
      are_numbered: Whether labels of text have been numbered.

    Raises:
      UsageError: `given` is no list of different names, or there are not as many as the model has outputs.
    """

    def __init__(self, model: keras.Model, given: Any) -> None:
        self._loss = _name_of(getattr(model, "loss", None))
        self.names: list[str] = [] if given is None else _checked(given)
        self.are_numbered = False
        outputs = _outputs(model)
        if self.names and outputs is not None and max(2, outputs) != len(self.names):
            raise UsageError(
                f"there are {len(self.names)} names, and the model has {outputs} outputs", key=_KEY, received=given
            )

    def numbered(self, y: Any, key: str = "y") -> Any:
        """Returns labels of text as their numbers, where the loss takes numbers of classes; others are unchanged.

        Without names so far, the labels that occur become the names, sorted.

        Raises:
          UsageError: A label is none of the names.
        """
        texts = _texts(y)
        if texts is None or not (self._loss in _NUMBERED or (self._loss in _OF_TWO and self._has_two(texts))):
            return y
        found, numbers = np.unique(texts, return_inverse=True)
        if not self.names:
            self.names = found.tolist()
        if unknown := sorted(set(found.tolist()) - set(self.names)):
            raise UsageError(
                f"the label is none of the {len(self.names)} classes",
                key=key,
                received=unknown[0],
                remedy=nearest(unknown[0], self.names),
            )
        self.are_numbered = True
        positions = np.array([self.names.index(name) for name in found.tolist()], np.int32)
        return positions[numbers.reshape(texts.shape)]

    def in_data(self, data: Any, key: str) -> Any:
        """Returns `(x, y)` or `(x, y, weight)` with labels as numbers; anything else is returned unchanged."""
        if isinstance(data, tuple | list) and len(data) in (2, 3) and _texts(data[1]) is not None:
            return (data[0], self.numbered(data[1], key), *data[2:])
        return data

    def require_those_of(self, directory: Path) -> None:
        """Refuses to resume a run whose labels of text had other numbers.

        Raises:
          UsageError: The run has other classes.
        """
        if not self.are_numbered or not (directory / "run.json").is_file():
            return
        stored = read(directory).get("classes")
        if stored and stored != self.names:
            raise UsageError(
                f"the run was trained on the classes {', '.join(stored)}",
                key=_KEY,
                received=self.names,
                remedy=f"pass class_names={stored!r}, or use another model_dir",
            )

    def line(self) -> str:
        """Returns what numbers the labels have, to be printed: `labels are numbered: 0 bird, 1 cat`."""
        shown = [f"{number} {name}" for number, name in enumerate(self.names[:8])]
        return f"labels are numbered: {', '.join(shown)}{', …' if len(self.names) > 8 else ''}"

    def _has_two(self, texts: np.ndarray) -> bool:
        return len(self.names or np.unique(texts)) == 2


def _checked(given: Any) -> list[str]:
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray) or not len(given):
        raise UsageError(
            "expected a list of the classes' names, in the order of their numbers", key=_KEY, received=given
        )
    names = [str(name) for name in given]
    if len(set(names)) < len(names):
        raise UsageError("has a name twice", key=_KEY, received=given)
    return names


def _texts(y: Any) -> np.ndarray | None:
    """Returns labels of text, one for each sample, as an array; None for other labels."""
    if isinstance(y, list) and y and all(isinstance(label, str) for label in y):
        return np.array(y)
    if not is_arrays(y) or isinstance(y, list | tuple | dict) or not is_text(array := np.asarray(y)):
        return None
    if array.ndim > 2 or array.size != len(array):
        return None
    return np.array([label.decode() if isinstance(label, bytes) else label for label in array.ravel()]).reshape(
        array.shape
    )


def _name_of(loss: Any) -> str:
    if isinstance(loss, str):
        return loss
    if isinstance(loss, list | tuple) and len(loss) == 1:
        return _name_of(loss[0])
    return getattr(loss, "__name__", "") or type(loss).__name__


def _outputs(model: keras.Model) -> int | None:
    """Returns the size of the model's last axis; None if it has several outputs, or is not built."""
    try:
        shape = model.output_shape
    except (AttributeError, ValueError, RuntimeError):
        return None
    return shape[-1] if isinstance(shape, tuple) and len(shape) == 2 and isinstance(shape[-1], int) else None
