"""What the shipped metrics share: they take a batch, and a prediction that is not finite gives NaN."""

from abc import abstractmethod
from typing import Any

import numpy as np

from everstep.evaluation.metric import Better, SampleMetric
from everstep.evaluation.metrics import shapes


class BatchMetric(SampleMetric):
    """A vectorised metric in NumPy. Subclasses say how it is computed, in `_values`."""

    def __init__(self, name: str, description: str, better: Better):
        super().__init__(name, self._over_a_batch, True, description, better)

    def _over_a_batch(self, y_true: Any, y_pred: Any) -> np.ndarray:
        """Returns `_values`, NaN where the prediction holds NaN or an infinity: a comparison would hide it."""
        with np.errstate(invalid="ignore", over="ignore"):
            values = self._values(np.asarray(y_true), np.asarray(y_pred))
        finite = np.isfinite(shapes.flat(np.asarray(y_pred))).all(axis=1)
        return np.where(finite, values, np.nan)

    @abstractmethod
    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        """Returns one number per sample of a batch."""
