"""Label, prediction and confidence of each sample, beside its metrics.

They depend on the kind of problem, which is specified, or inferred from the first batch:

    classification   labels are class numbers or one-hot; predictions have a number per class (or one, for two classes)
    regression       labels and predictions are numbers
    segmentation     both are masks
    text             both are texts, such as what a language model was asked for and what it wrote
    values           anything else: only metrics
"""

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal, Protocol, get_args

import numpy as np

from everstep.data import check_labels
from everstep.errors import UsageError, nearest
from everstep.evaluation.arrays import as_text

OutcomeKind = Literal["classification", "regression", "segmentation", "text", "values"]


def kind_of(y_true: Any, y_pred: Any) -> OutcomeKind:
    """Infers the kind of problem from labels and predictions; "values" if it is unknown.

    Class numbers with one number per prediction count as two classes only if the predictions are within 0 to 1: pass
    `kind` if that is wrong.
    """
    if _are_texts(y_true) and _are_texts(y_pred):
        return "text"
    if not (_is_numeric(y_true) and _is_numeric(y_pred)):
        return "values"
    if y_pred.ndim > 2:
        return "segmentation" if y_true.ndim > 2 else "values"
    if y_pred.ndim == 2 and y_pred.shape[1] > 1:
        return _kind_of_vectors(y_true, y_pred)
    if y_true.size != len(y_true):
        return "values"
    is_binary = _are_class_numbers(y_true, 2) and bool(((y_pred >= 0) & (y_pred <= 1)).all())
    return "classification" if is_binary else "regression"


def _kind_of_vectors(y_true: np.ndarray, y_pred: np.ndarray) -> OutcomeKind:
    if y_true.size == len(y_true):
        return "classification" if _are_class_numbers(y_true, y_pred.shape[1]) else "values"
    if y_true.shape != y_pred.shape:
        return "values"
    if _are_class_numbers(y_true, 2):
        return "classification" if (y_true.sum(axis=1) == 1).all() else "values"
    return "regression"


def _are_class_numbers(values: np.ndarray, count: int) -> bool:
    return bool(((values >= 0) & (values < count) & (values == np.floor(values))).all())


def _is_numeric(values: Any) -> bool:
    return isinstance(values, np.ndarray) and values.dtype.kind in "biuf" and values.ndim > 0


def _are_texts(values: Any) -> bool:
    """Whether there is one text per sample, alone or beside numbers under the key `text`."""
    values = written(values)
    return isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind in "OSU"


def written(values: Any) -> Any:
    """Returns the texts of predictions that hold further values beside them: `{"text": …, "loss": …}`."""
    return values["text"] if isinstance(values, Mapping) and "text" in values else values


Columns = dict[str, np.ndarray]

MOST_CLASSES = 1_000
"""With more classes there is no confusion matrix."""


class Outcome(Protocol):
    """Extracts label, prediction and confidence; the evaluator calls it with each batch, in order."""

    confusion: np.ndarray | None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns columns with one value per sample: numbers or texts; a missing float is NaN, a missing integer -1."""


class Plain:
    """Samples that have only metrics."""

    confusion: np.ndarray | None = None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns no columns."""
        return {}


class Numbers:
    """Regression: the label and the prediction, if each is one number."""

    confusion: np.ndarray | None = None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns `label` and `prediction`, if a sample has one of each."""
        if not all(isinstance(values, np.ndarray) and values.size == len(values) for values in (y_true, y_pred)):
            return {}
        return {"label": y_true.reshape(-1).astype(np.float64), "prediction": y_pred.reshape(-1).astype(np.float64)}


class Texts:
    """Texts: what was expected as the label, and what was written as the prediction."""

    confusion: np.ndarray | None = None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns `label` and `prediction`, as texts."""
        return {"label": _texts(y_true), "prediction": _texts(y_pred)}


class Classes:
    """Classification: class numbers, the model's confidence, and the confusion matrix so far.

    Args:
      count: The number of classes.
      from_logits: Whether predictions are logits; None to infer it from values outside 0 to 1 in the first batch.
    """

    def __init__(self, count: int, from_logits: bool | None):
        self._count = count
        self._from_logits = from_logits
        self.confusion: np.ndarray | None = np.zeros((count, count), np.int64) if count <= MOST_CLASSES else None

    def columns(self, y_true: Any, y_pred: Any) -> Columns:
        """Returns `label`, `prediction` (-1 if the model's output is not finite) and `confidence`."""
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
                "were probabilities in earlier batches and are now outside 0 to 1",
                key="y_pred",
                remedy="pass from_logits=True if they are logits",
            )
        with np.errstate(over="ignore", invalid="ignore"):
            if self._from_logits:
                return _softmax(scores)
        return np.concatenate([1 - scores, scores], axis=1) if scores.shape[1] == 1 else scores


def outcome_of(
    kind: OutcomeKind | None, y_true: Any, y_pred: Any, classes: int, from_logits: bool | None
) -> tuple[OutcomeKind, Outcome]:
    """Returns the kind of a problem and its `Outcome`, from the first batch.

    Args:
      kind: The specified kind; None to infer it.
      y_true: Labels of the first batch.
      y_pred: Predictions of the first batch.
      classes: The number of class names, 0 for none.
      from_logits: Whether predictions are logits; see `Classes`.

    Raises:
      UsageError: There is no such kind, or there are not as many class names as predictions.
    """
    if kind is not None and kind not in get_args(OutcomeKind):
        raise UsageError(
            "there is no such kind", key="kind", received=kind, remedy=nearest(str(kind), get_args(OutcomeKind))
        )
    kind = kind or kind_of(y_true, y_pred)
    if kind == "text" and not (_are_texts(y_true) and _are_texts(y_pred)):
        raise UsageError("text needs one text per sample", key="y_pred", received=np.shape(written(y_pred)))
    if kind != "classification":
        others: dict[str, Outcome] = {"regression": Numbers(), "text": Texts()}
        return kind, others.get(kind, Plain())
    if not isinstance(y_pred, np.ndarray) or y_pred.ndim > 2:
        raise UsageError("classification needs the shape (n, classes)", key="y_pred", received=np.shape(y_pred))
    count = max(2, y_pred.reshape(len(y_pred), -1).shape[1])
    if classes and classes != count:
        raise UsageError(f"there are {classes} names, but predictions for {count} classes", key="classes")
    return kind, Classes(count, from_logits)


def _texts(values: Any) -> np.ndarray:
    return np.asarray([as_text(value) for value in written(values).tolist()], object)


def _class_numbers(y_true: Any, count: int) -> np.ndarray:
    labels = np.asarray(y_true)
    if labels.ndim == 2 and labels.shape[1] == count:
        return labels.argmax(axis=1)
    if labels.size != len(labels):
        reason = f"labels of shape {labels.shape} are neither class numbers nor one-hot over {count} classes"
        raise UsageError(reason, key="y_true")
    try:
        check_labels(labels, count, "the labels")
    except UsageError as error:
        remedy = "pass kind='regression' if the labels are not classes"
        raise UsageError([dataclasses.replace(one, remedy=remedy) for one in error.problems]) from error
    return labels.reshape(-1).astype(np.int64)


def _softmax(scores: np.ndarray) -> np.ndarray:
    """Returns probabilities from logits; one logit is that of the second of two classes."""
    if scores.shape[1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=1)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)
