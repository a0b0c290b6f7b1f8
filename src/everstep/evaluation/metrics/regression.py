"""Regression: how far off a prediction is, as the mean over the numbers of a sample."""

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation.metrics import shapes
from everstep.evaluation.metrics.batch_metric import BatchMetric


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
      epsilon: The smallest size of a label that is divided by, for labels that are zero.
      name: The column.
    """

    def __init__(self, epsilon: float = 1e-7, name: str = "relative_error"):
        if not epsilon > 0:
            raise UsageError(f"epsilon is above 0, or a label of 0 would be divided by: received {epsilon!r}")
        super().__init__(name, "distance of prediction and label, as a share of the label", "lower")
        self.epsilon = epsilon

    def _values(self, y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
        sizes = np.maximum(np.abs(shapes.flat(y_true.astype(np.float64))), self.epsilon)
        return (np.abs(_differences(y_true, y_pred)) / sizes).mean(axis=1)


def _differences(y_true: np.ndarray, y_pred: np.ndarray) -> np.ndarray:
    true, pred = shapes.same(y_true, y_pred)
    return pred.astype(np.float64) - true.astype(np.float64)
