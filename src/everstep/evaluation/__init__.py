"""Evaluation sample by sample: one row per data point, in files that reports read.

    evaluator = Evaluator([CrossEntropy(), Accuracy()], kind="classification")
    evaluation = evaluator.run(predictions(model.predict_on_batch, batches), "runs/first/reports", "test")
    evaluation.means["accuracy"]

A `SampleMetric` measures the prediction for one sample, `predictions` joins batches of data with a model's outputs, and
the `Evaluator` writes a row for each sample. Nothing here depends on a backend.
"""

from everstep.evaluation.batch import SampleBatch, predictions
from everstep.evaluation.evaluator import Evaluation, Evaluator
from everstep.evaluation.sample_metric import SampleMetric, sample_metrics, vectorized
from everstep.evaluation.shipped_metrics import (
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
from everstep.evaluation.text_metrics import ExactMatch, Rouge, SampleLoss, TokenF1

__all__ = [
    "TNR",
    "TPR",
    "AbsoluteError",
    "Accuracy",
    "CrossEntropy",
    "DiceScore",
    "Evaluation",
    "Evaluator",
    "ExactMatch",
    "IoUScore",
    "Precision",
    "RelativeError",
    "Rouge",
    "SampleBatch",
    "SampleLoss",
    "SampleMetric",
    "SoftDice",
    "SoftIoUScore",
    "SquaredError",
    "TokenF1",
    "TopK",
    "predictions",
    "sample_metrics",
    "vectorized",
]
