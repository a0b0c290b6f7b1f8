"""The metrics that ship: NumPy alone, a batch at a time, right on masks that are empty."""

from everstep.evaluation.metrics.classification import Accuracy, CrossEntropy, TopK
from everstep.evaluation.metrics.overlap import DiceScore, IoUScore, SoftDice, SoftIoUScore
from everstep.evaluation.metrics.rates import TNR, TPR, Precision
from everstep.evaluation.metrics.regression import AbsoluteError, RelativeError, SquaredError

__all__ = [
    "TNR",
    "TPR",
    "AbsoluteError",
    "Accuracy",
    "CrossEntropy",
    "DiceScore",
    "IoUScore",
    "Precision",
    "RelativeError",
    "SoftDice",
    "SoftIoUScore",
    "SquaredError",
    "TopK",
]
