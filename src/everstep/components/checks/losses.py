"""What a compiled loss expects of labels and outputs, as far as it is one of Keras's own."""

import dataclasses
import inspect
from typing import Any

import keras
import numpy as np

_BY_NUMBER = ("sparse_categorical_crossentropy",)
_PROBABILITIES = (
    *_BY_NUMBER,
    "categorical_crossentropy",
    "categorical_focal_crossentropy",
    "binary_crossentropy",
    "binary_focal_crossentropy",
)
_OF_SAMPLES = ("dice", "tversky", "circle")


@dataclasses.dataclass(frozen=True)
class LossFacts:
    """One loss.

    Attributes:
      name: What it is called.
      classes_by_number: Whether labels are numbers of classes, without the classes' axis.
      compares_alike: Whether labels and outputs have one shape.
      takes_probabilities: Whether it compares probabilities, or logits where it is told so.
      from_logits: Whether it is told so.
      ignored: The label that counts for nothing, if there is one.
    """

    name: str
    classes_by_number: bool
    compares_alike: bool
    takes_probabilities: bool
    from_logits: bool
    ignored: int | None

    @property
    def by_element(self) -> bool:
        """Whether it is one of Keras's that have a value for each element, without the last axis, or with it."""
        return self.classes_by_number or (self.compares_alike and self.name not in _OF_SAMPLES)

    def hint(self, label: np.ndarray, output: np.ndarray) -> str:
        """Returns a remedy where the other kind of cross-entropy would fit."""
        if self.classes_by_number and label.shape == output.shape:
            return ": labels look one-hot, for which there is categorical_crossentropy"
        if "crossentropy" in self.name and label.shape == output.shape[:-1]:
            return ": labels look like numbers of classes, for which there is sparse_categorical_crossentropy"
        return ""


def loss_facts(model: keras.Model, outputs: int) -> list[LossFacts]:
    """Returns the facts of each output's loss; none where they cannot be told apart."""
    loss = model.loss
    listed = keras.tree.flatten(loss) if isinstance(loss, dict | list | tuple) else [loss] * outputs
    if len(listed) != outputs or any(each is None for each in listed):
        return []
    return [_facts(each) for each in listed]


def _facts(loss: Any) -> LossFacts:
    function, options = _function(loss)
    name = str(getattr(function, "__name__", type(function).__name__))
    is_keras = str(getattr(function, "__module__", "")).startswith("keras.")
    by_number = is_keras and name in _BY_NUMBER
    return LossFacts(
        name=name,
        classes_by_number=by_number,
        compares_alike=is_keras and not by_number and "ctc" not in name,
        takes_probabilities=is_keras and name in _PROBABILITIES,
        from_logits=bool(options.get("from_logits", False)),
        ignored=options.get("ignore_class"),
    )


def _function(loss: Any) -> tuple[Any, dict[str, Any]]:
    """Returns the function that is computed, and what it is called with beside labels and outputs."""
    found = keras.losses.get(loss) if isinstance(loss, str) else loss
    if inspect.isclass(found):
        found = found()
    return getattr(found, "fn", found), dict(getattr(found, "_fn_kwargs", {}))
