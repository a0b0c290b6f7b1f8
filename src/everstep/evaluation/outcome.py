"""What a page wants to know of a sample besides its metrics: label, prediction, confidence.

That depends on the kind of problem, which is given, or seen in the first batch:

    classification   labels are class numbers or one-hot, predictions have one number per class (or one, of two)
    regression       labels and predictions are numbers
    segmentation     both are masks
    values           anything else: metrics alone
"""

from typing import Any, Protocol, get_args

import numpy as np

from everstep.data import check_labels
from everstep.errors import UsageError, nearest
from everstep.evaluation.kinds import Kind, kind_of

Columns = dict[str, np.ndarray]

MOST_CLASSES = 1_000
"""Beyond it a confusion matrix is neither kept nor shown."""


class Outcome(Protocol):
    """Reads label, prediction and confidence from batches; the evaluator calls it with each, in order."""

    confusion: np.ndarray | None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns one value per sample under each name; floats are NaN where there is none, integers -1."""


class Plain:
    """Samples of which only metrics are known."""

    confusion: np.ndarray | None = None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns nothing."""
        return {}


class Numbers:
    """Regression: the label and the prediction themselves, where they are one number."""

    confusion: np.ndarray | None = None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns `label` and `prediction`, if a sample has one of each."""
        if not all(isinstance(values, np.ndarray) and values.size == len(values) for values in (y_true, y_pred)):
            return {}
        return {"label": y_true.reshape(-1).astype(np.float64), "prediction": y_pred.reshape(-1).astype(np.float64)}


class Classes:
    """Classification: class numbers, how sure the model was, and the confusion matrix while it goes.

    Args:
      count: How many classes there are.
      from_logits: Whether predictions are logits. None: seen in the first batch, by values outside 0 to 1.
    """

    def __init__(self, count: int, from_logits: bool | None):
        self._count = count
        self._from_logits = from_logits
        self.confusion: np.ndarray | None = np.zeros((count, count), np.int64) if count <= MOST_CLASSES else None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns `label`, `prediction` (-1 where the answer is not finite) and `confidence`."""
        labels = _class_numbers(y_true, self._count)
        shares = self._probabilities(y_pred.reshape(len(y_pred), -1).astype(np.float64))
        finite = np.isfinite(shares).all(axis=1)
        predicted = np.where(finite, shares.argmax(axis=1), -1)
        if self.confusion is not None:
            np.add.at(self.confusion, (labels[finite], predicted[finite]), 1)
        return {"label": labels, "prediction": predicted, "confidence": np.where(finite, shares.max(axis=1), np.nan)}

    def _probabilities(self, scores: np.ndarray) -> np.ndarray:
        outside = bool(((scores < -1e-3) | (scores > 1 + 1e-3)).any())
        if self._from_logits is None:
            self._from_logits = outside
        if outside and not self._from_logits:
            raise UsageError(
                "predictions began as probabilities and now leave 0 to 1: for logits, say from_logits=True"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            return _of_logits(scores) if self._from_logits else _of_two(scores)


def outcome_of(
    kind: Kind | None, y_true: Any, y_pred: Any, classes: int, from_logits: bool | None
) -> tuple[Kind, Outcome]:
    """Returns the kind of a problem and its reader, from the first batch.

    Args:
      kind: What the user says, None to look.
      y_true: Labels of the first batch.
      y_pred: Predictions of the first batch.
      classes: How many class names were given, 0 for none.
      from_logits: See `Classes`.

    Raises:
      UsageError: There is no such kind, or the names of the classes are not as many as the predictions.
    """
    if kind is not None and kind not in get_args(Kind):
        raise UsageError(f"there is no kind {kind!r} of problem: {nearest(str(kind), get_args(Kind))}")
    kind = kind or kind_of(y_true, y_pred)
    if kind != "classification":
        return kind, (Numbers() if kind == "regression" else Plain())
    if not isinstance(y_pred, np.ndarray) or y_pred.ndim > 2:
        raise UsageError(f"classification needs predictions of shape (n, classes), received {np.shape(y_pred)}")
    count = max(2, y_pred.reshape(len(y_pred), -1).shape[1])
    if classes and classes != count:
        raise UsageError(f"there are {classes} names of classes, but predictions tell {count} apart")
    return kind, Classes(count, from_logits)


def _class_numbers(y_true: Any, count: int) -> np.ndarray:
    labels = np.asarray(y_true)
    if labels.ndim == 2 and labels.shape[1] == count:
        return labels.argmax(axis=1)
    if labels.size != len(labels):
        raise UsageError(f"labels of shape {labels.shape} are neither class numbers nor one-hot over {count} classes")
    try:
        check_labels(labels, count, "the labels")
    except UsageError as error:
        raise UsageError(f"{error}; labels that are no classes: say kind='regression'") from error
    return labels.reshape(-1).astype(np.int64)


def _of_two(shares: np.ndarray) -> np.ndarray:
    """Returns probabilities with a column for each of two classes, where there was one for the second."""
    return np.concatenate([1 - shares, shares], axis=1) if shares.shape[1] == 1 else shares


def _of_logits(scores: np.ndarray) -> np.ndarray:
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
