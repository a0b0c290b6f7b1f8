"""What a compiled loss of Keras's own expects of labels, outputs and sample weights."""

import dataclasses
import inspect
from collections.abc import Mapping
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
      name: The name of its function.
      classes_by_number: Whether labels are numbers of classes, without an axis for classes.
      compares_alike: Whether labels and outputs have the same shape.
      takes_probabilities: Whether outputs are probabilities, or logits with `from_logits`.
      from_logits: Whether outputs are logits.
      ignored: The label that is ignored, if any.
    """

    name: str
    classes_by_number: bool
    compares_alike: bool
    takes_probabilities: bool
    from_logits: bool
    ignored: int | None

    @property
    def by_element(self) -> bool:
        """Whether it is a loss of Keras's with a value for each element, with or without the last axis."""
        return self.classes_by_number or (self.compares_alike and self.name not in _OF_SAMPLES)

    def hint(self, label: np.ndarray, output: np.ndarray) -> str:
        """Returns a remedy where the other kind of cross-entropy would fit."""
        if self.classes_by_number and label.shape == output.shape:
            return "labels look one-hot: use categorical_crossentropy"
        if "crossentropy" in self.name and label.shape == output.shape[:-1]:
            return "labels look like numbers of classes: use sparse_categorical_crossentropy"
        return ""


def loss_facts(model: keras.Model, outputs: int) -> list[LossFacts]:
    """Returns the facts of each output's loss; none where losses and outputs cannot be matched."""
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
    """Returns the function of a loss, and its arguments beside labels and outputs."""
    found = keras.losses.get(loss) if isinstance(loss, str) else loss
    if inspect.isclass(found):
        found = found()
    return getattr(found, "fn", found), dict(getattr(found, "_fn_kwargs", {}))


def with_axes(model: keras.Model, batch: Any) -> Any:
    """Returns a batch whose sample weights have as many axes as the labels: the weight of a mask is that of its pixels.

    Keras adds no axes: `(batch,)` against losses `(batch, height, width)` fails, or, where a batch is as large as a
    mask is wide, weights columns in place of samples. The axes of a custom loss are not known: its weights stay as
    they are.

    Args:
      model: A compiled model, whose losses decide.
      batch: `(x, y, weights)` in arrays or tensors; anything else is returned unchanged.
    """
    if not isinstance(batch, tuple | list) or len(batch) != 3 or len(getattr(batch[2], "shape", ())) != 1:
        return batch
    x, y, weight = batch
    leaves = keras.tree.flatten(y)
    facts = loss_facts(model, len(leaves))
    if len(facts) != len(leaves) or not _same_order(model.loss, y):
        return batch
    ranks = [_rank(leaf.shape) if fact.by_element else 1 for fact, leaf in zip(facts, leaves, strict=True)]
    if set(ranks) == {1}:
        return batch
    shaped = [keras.ops.reshape(weight, (-1, *(1,) * (rank - 1))) for rank in ranks]
    return x, y, shaped[0] if len(set(ranks)) == 1 else keras.tree.pack_sequence_as(y, shaped)


def _same_order(loss: Any, y: Any) -> bool:
    """Whether the losses of several outputs come in the order of the labels."""
    if isinstance(loss, Mapping):
        return isinstance(y, Mapping) and loss.keys() == y.keys()
    return not (isinstance(loss, list | tuple) and isinstance(y, Mapping))


def _rank(shape: tuple[int | None, ...]) -> int:
    """Returns how many axes a label's losses have, or one more, which Keras removes; not counting a last axis of 1."""
    return max(len(shape) - (shape[-1] == 1), 1) if shape else 1
