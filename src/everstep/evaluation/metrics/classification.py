"""Classification: the cost of a label under the prediction, and whether it was found."""

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation.metrics import shapes
from everstep.evaluation.metrics.batch_metric import BatchMetric

SMALLEST = 1e-7
"""Probabilities are kept this far from 0 and 1, as Keras keeps them, so that a logarithm stays finite."""

NO_PROBABILITY = "probabilities are from 0 to 1; for logits, say from_logits=True"


class CrossEntropy(BatchMetric):
    """Cross-entropy of label and prediction, 0 or more; lower is better.

    Labels are class numbers or one-hot (also soft) vectors; a prediction of one number is the second class's of
    two. Where a sample has several positions, as in segmentation, it is their mean.

    Args:
      from_logits: Whether predictions are logits; else they are probabilities.
      name: The column.
    """

    def __init__(self, from_logits: bool = False, name: str = "cross_entropy"):
        super().__init__(name, "cross-entropy of label and prediction", "lower")
        self.from_logits = from_logits

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        if shapes.is_binary(y_pred):
            return self._of_two(*shapes.same(y_true, y_pred))
        true, pred = shapes.classes(y_true, y_pred)
        logs = _log_softmax(pred) if self.from_logits else _log_probabilities(pred)
        if true.ndim == 3:
            _check_one_hot(true)
            return -(true * logs).sum(axis=-1).mean(axis=-1)
        return -_picked(logs, true).mean(axis=-1)

    def _of_two(self, true: np.ndarray, pred: np.ndarray) -> np.ndarray:
        shapes.check_fractions(true, "y_true", "labels of two classes are from 0 to 1")
        scores = pred.astype(np.float64)
        if self.from_logits:
            costs = np.maximum(scores, 0) - scores * true + np.log1p(np.exp(-np.abs(scores)))
        else:
            shapes.check_fractions(scores, "y_pred", NO_PROBABILITY)
            scores = np.clip(scores, SMALLEST, 1 - SMALLEST)
            costs = -(true * np.log(scores) + (1 - true) * np.log1p(-scores))
        return costs.mean(axis=-1)


class Accuracy(BatchMetric):
    """Share of a sample's labels that are predicted, in [0, 1]: 0 or 1 where there is one label.

    Args:
      threshold: For predictions of one number: above it, the second of two classes is predicted.
      name: The column.
    """

    def __init__(self, threshold: float = 0.5, name: str = "accuracy"):
        super().__init__(name, "whether the label is predicted, 0 to 1", "higher")
        self.threshold = threshold

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        if shapes.is_binary(y_pred):
            true, pred = shapes.masks(y_true, y_pred)
            right = (true > 0.5) == (pred > self.threshold)
        else:
            true, pred = shapes.classes(y_true, y_pred)
            right = _numbers(true) == pred.argmax(axis=-1)
        return right.mean(axis=-1)


class TopK(BatchMetric):
    """Share of a sample's labels that are among the k most likely classes, in [0, 1].

    Of classes that are equally likely, the ones with smaller numbers come first, so that k=1 is `Accuracy`.

    Args:
      k: How many classes count.
      name: The column; `top_5` by default.
    """

    def __init__(self, k: int = 5, name: str | None = None):
        if not isinstance(k, int) or k < 1:
            raise UsageError(f"k is how many classes count, 1 or more: received {k!r}")
        super().__init__(name or f"top_{k}", f"label among the first {k}, 0 to 1", "higher")
        self.k = k

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        true, pred = shapes.classes(y_true, y_pred)
        labels = _numbers(true)
        own = _picked(pred, labels)[..., None]
        earlier = np.arange(pred.shape[-1]) < labels[..., None]
        rank = ((pred > own) | ((pred == own) & earlier)).sum(axis=-1)
        return (rank < self.k).mean(axis=-1)


def _numbers(labels: np.ndarray) -> np.ndarray:
    return labels.argmax(axis=-1) if labels.ndim == 3 else labels


def _picked(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, labels[..., None], axis=-1)[..., 0]


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def _log_probabilities(values: np.ndarray) -> np.ndarray:
    shapes.check_fractions(values, "y_pred", NO_PROBABILITY)
    values = values.astype(np.float64)
    total = values.sum(axis=-1, keepdims=True)
    shares = np.divide(values, total, out=np.zeros_like(values), where=total != 0)
    return np.log(np.clip(shares, SMALLEST, 1 - SMALLEST))


def _check_one_hot(labels: np.ndarray) -> None:
    sums = labels.sum(axis=-1)
    if labels.size and (labels.min() < 0 or not np.allclose(sums, 1, atol=1e-3)):
        raise UsageError("labels of the shape of y_pred must be one-hot or sum to 1 over the classes")
