"""Evaluation sample by sample: one row per data point, in files that reports read.

    evaluator = Evaluator([CrossEntropy(), Accuracy()], kind="classification")
    evaluation = evaluator.run(predictions(model.predict_on_batch, batches), "runs/first/reports", "test")
    evaluation.means["accuracy"]

A `SampleMetric` measures the prediction for one sample, `predictions` joins batches of data with a model's outputs, and
the `Evaluator` writes a row for each sample. Nothing here depends on a backend. A name is loaded when it is
first used: training needs none of the files that an evaluation writes.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.evaluation.batch import SampleBatch as SampleBatch
    from everstep.evaluation.batch import predictions as predictions
    from everstep.evaluation.evaluator import Evaluation as Evaluation
    from everstep.evaluation.evaluator import Evaluator as Evaluator
    from everstep.evaluation.sample_metric import SampleMetric as SampleMetric
    from everstep.evaluation.sample_metric import sample_metrics as sample_metrics
    from everstep.evaluation.sample_metric import vectorized as vectorized
    from everstep.evaluation.shipped_metrics import TNR as TNR
    from everstep.evaluation.shipped_metrics import TPR as TPR
    from everstep.evaluation.shipped_metrics import AbsoluteError as AbsoluteError
    from everstep.evaluation.shipped_metrics import Accuracy as Accuracy
    from everstep.evaluation.shipped_metrics import CrossEntropy as CrossEntropy
    from everstep.evaluation.shipped_metrics import DiceScore as DiceScore
    from everstep.evaluation.shipped_metrics import IoUScore as IoUScore
    from everstep.evaluation.shipped_metrics import Precision as Precision
    from everstep.evaluation.shipped_metrics import RelativeError as RelativeError
    from everstep.evaluation.shipped_metrics import SoftDice as SoftDice
    from everstep.evaluation.shipped_metrics import SoftIoUScore as SoftIoUScore
    from everstep.evaluation.shipped_metrics import SquaredError as SquaredError
    from everstep.evaluation.shipped_metrics import TopK as TopK
    from everstep.evaluation.text_metrics import ExactMatch as ExactMatch
    from everstep.evaluation.text_metrics import Rouge as Rouge
    from everstep.evaluation.text_metrics import SampleLoss as SampleLoss
    from everstep.evaluation.text_metrics import TokenF1 as TokenF1

_WHERE = {
    "AbsoluteError": "everstep.evaluation.shipped_metrics",
    "Accuracy": "everstep.evaluation.shipped_metrics",
    "CrossEntropy": "everstep.evaluation.shipped_metrics",
    "DiceScore": "everstep.evaluation.shipped_metrics",
    "Evaluation": "everstep.evaluation.evaluator",
    "Evaluator": "everstep.evaluation.evaluator",
    "ExactMatch": "everstep.evaluation.text_metrics",
    "IoUScore": "everstep.evaluation.shipped_metrics",
    "Precision": "everstep.evaluation.shipped_metrics",
    "RelativeError": "everstep.evaluation.shipped_metrics",
    "Rouge": "everstep.evaluation.text_metrics",
    "SampleBatch": "everstep.evaluation.batch",
    "SampleLoss": "everstep.evaluation.text_metrics",
    "SampleMetric": "everstep.evaluation.sample_metric",
    "SoftDice": "everstep.evaluation.shipped_metrics",
    "SoftIoUScore": "everstep.evaluation.shipped_metrics",
    "SquaredError": "everstep.evaluation.shipped_metrics",
    "TNR": "everstep.evaluation.shipped_metrics",
    "TPR": "everstep.evaluation.shipped_metrics",
    "TokenF1": "everstep.evaluation.text_metrics",
    "TopK": "everstep.evaluation.shipped_metrics",
    "predictions": "everstep.evaluation.batch",
    "sample_metrics": "everstep.evaluation.sample_metric",
    "vectorized": "everstep.evaluation.sample_metric",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
