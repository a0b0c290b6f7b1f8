"""Evaluation sample by sample: one row per data point, in files that reports read.

    evaluator = Evaluator([CrossEntropy(), Accuracy()], kind="classification")
    evaluation = evaluator.run(predictions(model.predict_on_batch, batches), "runs/first/reports", "test")
    evaluation.means["accuracy"]

A `SampleMetric` measures the prediction for one sample, `predictions` joins batches of data with a model's outputs, and
the `Evaluator` writes a row for each sample. Nothing here depends on a backend.

evaluator.py        measures batches in one pass, and writes four files
batch.py            batches of data joined with a model's outputs
sample_metric.py    metrics of single samples
shipped_metrics.py  those that come with the package
text_metrics.py     those of texts
outcome.py          label, prediction and confidence of a sample
sample_table.py     the rows, as CSV and Parquet; statistics and histogram of each metric
gallery.py          the samples that a report shows
display.py          a sample as a picture, a text, or numbers
task_samples.py     a task's validation data, sample by sample, with the metrics that fit it
arrays.py           NumPy arrays from tensors of any backend
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.evaluation.batch import (
        BatchReader,
        SampleBatch,
        predictions,
    )
    from everstep.evaluation.display import picture
    from everstep.evaluation.evaluator import (
        FORMAT,
        Evaluation,
        Evaluator,
    )
    from everstep.evaluation.outcome import (
        OutcomeKind,
        outcome_of,
    )
    from everstep.evaluation.sample_metric import (
        SampleMetric,
        sample_metrics,
        scores,
        vectorized,
    )
    from everstep.evaluation.sample_table import summarize
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
    from everstep.evaluation.task_samples import evaluate_samples
    from everstep.evaluation.text_metrics import (
        ExactMatch,
        Rouge,
        SampleLoss,
        TokenF1,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
