"""The shipped metrics: computed with NumPy, a batch at a time, and also defined for empty masks.

A prediction with NaN or infinity has no value (NaN). Batches have the shape `(n, …)`; the first functions flatten them
to one row per sample, so that a metric is a few lines of NumPy.

Overlaps of masks: `threshold` turns a prediction into a mask; the soft scores weight every pixel by its probability.
`epsilon` is added to numerator and denominator, so that two empty masks score 1.

Rates of pixels are in [0, 1], not in percent. A rate with an empty denominator is undefined: the true positive rate of
a mask without positives, the precision of a prediction without positives. It is then 1 if prediction and mask agree,
else 0; `empty` sets another value, and `empty=math.nan` leaves such samples out of means.
"""

from abc import abstractmethod
from typing import Any

import numpy as np

from everstep.data import check_labels
from everstep.errors import UsageError
from everstep.evaluation.sample_metric import Better, SampleMetric

ROUNDING = 1e-3
"""The tolerance for probabilities outside 0 to 1: half-precision models, interpolated masks."""


def same(true: np.ndarray, pred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels and predictions of one shape as `(n, values)`.

    A last axis of length one is ignored: masks `(n, h, w)` fit predictions `(n, h, w, 1)`.

    Raises:
      UsageError: The shapes do not fit.
    """
    if _without_last_one(true.shape) != _without_last_one(pred.shape):
        raise UsageError(f"y_true of shape {true.shape} does not fit y_pred of shape {pred.shape}", key="y_true")
    return flat(true), flat(pred)


def masks(y_true: np.ndarray, y_pred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns two masks as `(n, pixels)`, the true one with values from 0 to 1.

    Raises:
      UsageError: The shapes do not fit, or the true mask has other values, such as 255 or class numbers.
    """
    true, pred = same(y_true, y_pred)
    check_fractions(true, "y_true", "a mask is 0 and 1; divide by 255, or encode classes one-hot")
    return true, pred


def check_fractions(values: np.ndarray, what: str, remedy: str) -> None:
    """Checks that values are from 0 to 1, apart from rounding; NaN is accepted.

    Args:
      values: The values.
      what: A name for them in the error message.
      remedy: The remedy in the error message.

    Raises:
      UsageError: A value is outside; the message shows it.
    """
    if not values.size or values.dtype == bool:
        return
    low, high = np.fmin.reduce(values, axis=None), np.fmax.reduce(values, axis=None)
    if low < -ROUNDING or high > 1 + ROUNDING:
        reason = "has values outside 0 to 1"
        raise UsageError(reason, key=what, received=(low if low < -ROUNDING else high).item(), remedy=remedy)


def classes(true: np.ndarray, pred: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns labels for predictions over classes, `(n, positions)` and `(n, positions, classes)`.

    The last axis of predictions is the classes. Labels are class numbers, with or without a last axis of length
    one; or one-hot, which are returned as `(n, positions, classes)`.

    Raises:
      UsageError: The shapes do not fit, or a class number is out of range.
    """
    rows, count = len(pred), pred.shape[-1]
    positions = pred.reshape(rows, -1, count) if pred.size else pred.reshape(rows, 0, count)
    if true.shape == pred.shape:
        return true.reshape(positions.shape), positions
    if true.shape not in (pred.shape[:-1], (*pred.shape[:-1], 1)):
        raise UsageError(
            f"y_true of shape {true.shape} does not fit y_pred of shape {pred.shape}",
            key="y_true",
            remedy=f"pass class numbers of shape {pred.shape[:-1]} or one-hot labels of shape {pred.shape}",
        )
    check_labels(true, count, "the labels")
    return true.reshape(positions.shape[:-1]).astype(np.int64), positions


def is_binary(y_pred: np.ndarray) -> bool:
    """Returns whether predictions are one number per label: that of the second of two classes."""
    return y_pred.ndim == 1 or y_pred.shape[-1] == 1


def flat(values: np.ndarray) -> np.ndarray:
    """Returns `(n, …)` as `(n, values)`."""
    return values.reshape(len(values), int(np.prod(values.shape[1:], dtype=np.int64)))


def _without_last_one(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[:-1] if len(shape) > 1 and shape[-1] == 1 else shape


class BatchMetric(SampleMetric):
    """A vectorised metric in NumPy. Subclasses compute it in `_values`."""

    def __init__(self, name: str, description: str, better: Better):
        super().__init__(name, self._over_a_batch, True, description, better)

    def _over_a_batch(self, y_true: Any, y_pred: Any) -> np.ndarray:
        """Returns `_values`, with NaN for predictions that contain NaN or infinity, which a comparison would hide."""
        with np.errstate(invalid="ignore", over="ignore"):
            values = self._values(np.asarray(y_true), np.asarray(y_pred))
        finite = np.isfinite(flat(np.asarray(y_pred))).all(axis=1)
        return np.where(finite, values, np.nan)

    @abstractmethod
    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        """Returns one number per sample of a batch."""


SMALLEST = 1e-7
"""Probabilities are clipped this far from 0 and 1, as in Keras, so that logarithms stay finite."""

NO_PROBABILITY = "probabilities are from 0 to 1; pass from_logits=True for logits"


class CrossEntropy(BatchMetric):
    """Cross-entropy of label and prediction, 0 or more; lower is better.

    Labels are class numbers or one-hot (also soft) vectors; a prediction of one number is that of the second of two
    classes. For samples with several positions, as in segmentation, it is their mean.

    Args:
      from_logits: Whether predictions are logits instead of probabilities.
      name: The name of the column.
    """

    def __init__(self, from_logits: bool = False, name: str = "cross_entropy"):
        super().__init__(name, "cross-entropy of label and prediction", "lower")
        self.from_logits = from_logits

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        if is_binary(y_pred):
            return self._of_two(*same(y_true, y_pred))
        true, pred = classes(y_true, y_pred)
        logs = _log_softmax(pred) if self.from_logits else _log_probabilities(pred)
        if true.ndim == 3:
            _check_one_hot(true)
            return -(true * logs).sum(axis=-1).mean(axis=-1)
        return -_picked(logs, true).mean(axis=-1)

    def _of_two(self, true: np.ndarray, pred: np.ndarray) -> np.ndarray:
        check_fractions(true, "y_true", "labels of two classes are from 0 to 1")
        scores = pred.astype(np.float64)
        if self.from_logits:
            costs = np.maximum(scores, 0) - scores * true + np.log1p(np.exp(-np.abs(scores)))
        else:
            check_fractions(scores, "y_pred", NO_PROBABILITY)
            scores = np.clip(scores, SMALLEST, 1 - SMALLEST)
            costs = -(true * np.log(scores) + (1 - true) * np.log1p(-scores))
        return costs.mean(axis=-1)


class Accuracy(BatchMetric):
    """Share of a sample's labels that are predicted correctly, in [0, 1]: 0 or 1 for a single label.

    Args:
      threshold: For predictions of one number: above it, the second of two classes is predicted.
      name: The name of the column.
    """

    def __init__(self, threshold: float = 0.5, name: str = "accuracy"):
        super().__init__(name, "whether the label is predicted, 0 to 1", "higher")
        self.threshold = threshold

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        if is_binary(y_pred):
            true, pred = masks(y_true, y_pred)
            right = (true > 0.5) == (pred > self.threshold)
        else:
            true, pred = classes(y_true, y_pred)
            right = _numbers(true) == pred.argmax(axis=-1)
        return right.mean(axis=-1)


class TopK(BatchMetric):
    """Share of a sample's labels that are among the k most likely classes, in [0, 1].

    Equally likely classes are ranked by number, so that k=1 is `Accuracy`.

    Args:
      k: The number of classes.
      name: The name of the column; `top_5` by default.
    """

    def __init__(self, k: int = 5, name: str | None = None):
        if not isinstance(k, int) or k < 1:
            raise UsageError("must be at least 1", key="k", received=k)
        super().__init__(name or f"top_{k}", f"label among the first {k}, 0 to 1", "higher")
        self.k = k

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        true, pred = classes(y_true, y_pred)
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
    check_fractions(values, "y_pred", NO_PROBABILITY)
    values = values.astype(np.float64)
    total = values.sum(axis=-1, keepdims=True)
    shares = np.divide(values, total, out=np.zeros_like(values), where=total != 0)
    return np.log(np.clip(shares, SMALLEST, 1 - SMALLEST))


def _check_one_hot(labels: np.ndarray) -> None:
    sums = labels.sum(axis=-1)
    if labels.size and (labels.min() < 0 or not np.allclose(sums, 1, atol=1e-3)):
        raise UsageError("labels of the shape of y_pred must be one-hot or sum to 1 over the classes", key="y_true")


class _Overlap(BatchMetric):
    """The base of overlap scores, which are computed from three sums."""

    def __init__(self, name: str, description: str, threshold: float | None, epsilon: float):
        if not epsilon >= 0:
            raise UsageError("must be at least 0", key="epsilon", received=epsilon)
        super().__init__(name, f"{description}, 0 to 1", "higher")
        self.threshold = threshold
        self.epsilon = epsilon

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        true, pred = masks(y_true, y_pred)
        if self.threshold is None:
            check_fractions(pred, "y_pred", "a soft score needs probabilities; apply a sigmoid or softmax first")
            found, real = pred.astype(np.float64), true.astype(np.float64)
        else:
            found, real = (pred > self.threshold).astype(np.float64), (true > 0.5).astype(np.float64)
        common = np.einsum("ij,ij->i", found, real)
        return self._score(common, found.sum(axis=1), real.sum(axis=1))

    def _score(self, common: np.ndarray, found: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Returns the score from three sums per sample: of the intersection, the prediction, and the mask."""
        raise NotImplementedError

    def _ratio(self, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """Returns the smoothed ratio; 1 where both are zero."""
        above, below = part + self.epsilon, whole + self.epsilon
        return np.clip(np.divide(above, below, out=np.ones_like(above), where=below != 0), 0.0, 1.0)


class IoUScore(_Overlap):
    """Intersection over union of two masks, in [0, 1]."""

    def __init__(self, threshold: float = 0.5, epsilon: float = 1e-3, name: str = "iou"):
        super().__init__(name, "intersection over union", threshold, epsilon)

    def _score(self, common: np.ndarray, found: np.ndarray, real: np.ndarray) -> np.ndarray:
        return self._ratio(common, found + real - common)


class SoftIoUScore(_Overlap):
    """Intersection over union without a threshold: probabilities count as parts of a pixel; in [0, 1]."""

    def __init__(self, epsilon: float = 1e-3, name: str = "soft_iou"):
        super().__init__(name, "intersection over union, of probabilities", None, epsilon)

    def _score(self, common: np.ndarray, found: np.ndarray, real: np.ndarray) -> np.ndarray:
        return self._ratio(common, found + real - common)


class DiceScore(_Overlap):
    """Twice the intersection over the sum of both masks, in [0, 1]."""

    def __init__(self, threshold: float = 0.5, epsilon: float = 1e-6, name: str = "dice"):
        super().__init__(name, "Dice coefficient", threshold, epsilon)

    def _score(self, common: np.ndarray, found: np.ndarray, real: np.ndarray) -> np.ndarray:
        return self._ratio(2 * common, found + real)


class SoftDice(_Overlap):
    """The Dice coefficient without a threshold: probabilities count as parts of a pixel; in [0, 1]."""

    def __init__(self, epsilon: float = 1e-6, name: str = "soft_dice"):
        super().__init__(name, "Dice coefficient, of probabilities", None, epsilon)

    def _score(self, common: np.ndarray, found: np.ndarray, real: np.ndarray) -> np.ndarray:
        return self._ratio(2 * common, found + real)


class _Rate(BatchMetric):
    """The base of rates: the share of certain pixels that is right."""

    def __init__(self, name: str, description: str, threshold: float, empty: float | None):
        super().__init__(name, f"{description}, 0 to 1", "higher")
        self.threshold = threshold
        self.empty = empty

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        true, pred = masks(y_true, y_pred)
        counted, right = self._sides(true > 0.5, pred > self.threshold)
        whole = counted.sum(axis=1)
        undefined = np.where(right.any(axis=1), 0.0, 1.0) if self.empty is None else np.full(len(whole), self.empty)
        return np.divide((counted & right).sum(axis=1), whole, out=undefined, where=whole != 0)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pixels that the rate is over, and those that count as right among them (and elsewhere)."""
        raise NotImplementedError


class TPR(_Rate):
    """True positive rate (sensitivity, recall): of the pixels that are positive, the share that was found."""

    def __init__(self, threshold: float = 0.5, empty: float | None = None, name: str = "tpr"):
        super().__init__(name, "share of the positives that was found", threshold, empty)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return real, found


class TNR(_Rate):
    """True negative rate (specificity): of the pixels that are negative, the share that was predicted negative."""

    def __init__(self, threshold: float = 0.5, empty: float | None = None, name: str = "tnr"):
        super().__init__(name, "share of the negatives that was left alone", threshold, empty)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ~real, ~found


class Precision(_Rate):
    """Precision: of the pixels that were predicted positive, the share that is positive."""

    def __init__(self, threshold: float = 0.5, empty: float | None = None, name: str = "precision"):
        super().__init__(name, "share of what was claimed that is right", threshold, empty)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return found, real


class AbsoluteError(BatchMetric):
    """`|y_true - y_pred|`, the mean over a sample's numbers; 0 or more, lower is better."""

    def __init__(self, name: str = "absolute_error"):
        super().__init__(name, "distance of prediction and label", "lower")

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        return np.abs(_differences(y_true, y_pred)).mean(axis=1)


class SquaredError(BatchMetric):
    """`(y_true - y_pred) ** 2`, the mean over a sample's numbers; 0 or more, lower is better."""

    def __init__(self, name: str = "squared_error"):
        super().__init__(name, "squared distance of prediction and label", "lower")

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        return (_differences(y_true, y_pred) ** 2).mean(axis=1)


class RelativeError(BatchMetric):
    """`|y_true - y_pred| / |y_true|`, the mean over a sample's numbers; 0 or more, 0.1 is ten percent off.

    Args:
      epsilon: The smallest denominator, for labels that are zero.
      name: The name of the column.
    """

    def __init__(self, epsilon: float = 1e-7, name: str = "relative_error"):
        if not epsilon > 0:
            raise UsageError("must be above 0, since labels may be 0", key="epsilon", received=epsilon)
        super().__init__(name, "distance of prediction and label, as a share of the label", "lower")
        self.epsilon = epsilon

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        sizes = np.maximum(np.abs(flat(y_true.astype(np.float64))), self.epsilon)
        return (np.abs(_differences(y_true, y_pred)) / sizes).mean(axis=1)


def _differences(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    true, pred = same(y_true, y_pred)
    return pred.astype(np.float64) - true.astype(np.float64)
