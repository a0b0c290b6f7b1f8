"""Segmentation: how far two masks cover each other, over all pixels and channels of a sample.

`threshold` makes a mask of a prediction; the soft ones count every pixel as much as the model is sure of it.
`epsilon` is added above and below the line, so that two empty masks give 1: nothing was there, nothing was found.
"""

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation.metrics import shapes
from everstep.evaluation.metrics.batch_metric import BatchMetric


class _Overlap(BatchMetric):
    """What they share: the sums that every overlap is made of."""

    def __init__(self, name: str, description: str, threshold: float | None, epsilon: float):
        if not epsilon >= 0:
            raise UsageError(f"epsilon is 0 or more: received {epsilon!r}")
        super().__init__(name, f"{description}, 0 to 1", "higher")
        self.threshold = threshold
        self.epsilon = epsilon

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        true, pred = shapes.masks(y_true, y_pred)
        if self.threshold is None:
            shapes.check_fractions(pred, "y_pred", "a soft score needs probabilities; apply a sigmoid or softmax first")
            found, real = pred.astype(np.float64), true.astype(np.float64)
        else:
            found, real = (pred > self.threshold).astype(np.float64), (true > 0.5).astype(np.float64)
        common = np.einsum("ij,ij->i", found, real)
        return self._score(common, found.sum(axis=1), real.sum(axis=1))

    def _score(self, common: np.ndarray, found: np.ndarray, real: np.ndarray) -> np.ndarray:
        """Returns the score from three sums per sample: of what both have, of the prediction, of the mask."""
        raise NotImplementedError

    def _ratio(self, part: np.ndarray, whole: np.ndarray) -> np.ndarray:
        """Returns part of whole, smoothed; 1 where there is nothing on either side."""
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
