"""Evaluation: how a model did on each data point, one row per sample, in files that a page is made of.

    evaluator = Evaluator([CrossEntropy(), Accuracy()], kind="classification")
    evaluation = evaluator.run(predictions(model.predict_on_batch, batches), "runs/first/reports", "test")
    evaluation.means["accuracy"]

Three words: a `SampleMetric` says how good one sample's prediction is, `predictions` joins batches with what the
model answers, and the `Evaluator` writes it down while it passes. Nothing here knows a backend.
"""

from everstep.evaluation.batch import SampleBatch, predictions
from everstep.evaluation.evaluator import Evaluation, Evaluator
from everstep.evaluation.metric import SampleMetric, sample_metrics, vectorized
from everstep.evaluation.metrics import (
    TNR,
    TPR,
    AbsoluteError,
    Accuracy,
    CrossEntropy,
    DiceScore,
    IoUScore,
    Precision,
    RelativeError,
    SoftDice,
    SoftIoUScore,
    SquaredError,
    TopK,
)

__all__ = [
    "TNR",
    "TPR",
    "AbsoluteError",
    "Accuracy",
    "CrossEntropy",
    "DiceScore",
    "Evaluation",
    "Evaluator",
    "IoUScore",
    "Precision",
    "RelativeError",
    "SampleBatch",
    "SampleMetric",
    "SoftDice",
    "SoftIoUScore",
    "SquaredError",
    "TopK",
    "predictions",
    "sample_metrics",
    "vectorized",
]
