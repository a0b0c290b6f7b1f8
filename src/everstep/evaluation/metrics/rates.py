"""Segmentation and two classes: shares of right pixels, in [0, 1] and not in percent.

A share of nothing has no value of its own: the true positive rate of a mask without positives, the precision of a
prediction that claims none. It counts as 1 where prediction and mask agree that there is nothing, and as 0 where they
do not; `empty` gives it another value, and `empty=math.nan` leaves such samples out of means and rankings.
"""

import numpy as np

from everstep.evaluation.metrics import shapes
from everstep.evaluation.metrics.batch_metric import BatchMetric


class _Rate(BatchMetric):
    """What they share: of the pixels in question, how many are right."""

    def __init__(self, name: str, description: str, threshold: float, empty: float | None):
        super().__init__(name, f"{description}, 0 to 1", "higher")
        self.threshold = threshold
        self.empty = empty

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        true, pred = shapes.masks(y_true, y_pred)
        asked, other = self._sides(true > 0.5, pred > self.threshold)
        whole = asked.sum(axis=1)
        nothing = np.where(other.any(axis=1), 0.0, 1.0) if self.empty is None else np.full(len(whole), self.empty)
        return np.divide((asked & other).sum(axis=1), whole, out=nothing, where=whole != 0)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the pixels whose share is asked for, and those that are right among them (and elsewhere)."""
        raise NotImplementedError


class TPR(_Rate):
    """True positive rate (sensitivity, recall): of the pixels that are positive, the share that was found."""

    def __init__(self, threshold: float = 0.5, empty: float | None = None, name: str = "tpr"):
        super().__init__(name, "share of the positives that was found", threshold, empty)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return real, found


class TNR(_Rate):
    """True negative rate (specificity): of the pixels that are negative, the share that was left alone."""

    def __init__(self, threshold: float = 0.5, empty: float | None = None, name: str = "tnr"):
        super().__init__(name, "share of the negatives that was left alone", threshold, empty)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return ~real, ~found


class Precision(_Rate):
    """Precision: of the pixels that were claimed, the share that is positive."""

    def __init__(self, threshold: float = 0.5, empty: float | None = None, name: str = "precision"):
        super().__init__(name, "share of what was claimed that is right", threshold, empty)

    def _sides(self, real: np.ndarray, found: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return found, real
