"""Evaluation sample by sample: one row per data point, in files that reports read.

    evaluator = Evaluator([CrossEntropy(), Accuracy()], kind="classification")
    evaluation = evaluator.run(predictions(model.predict_on_batch, batches), "runs/first/reports", "test")
    evaluation.means["accuracy"]

A `SampleMetric` measures the prediction for one sample, `predictions` joins batches of data with a model's outputs, and
the `Evaluator` writes a row for each sample. Nothing here depends on a backend.

evaluator.py        measures batches in one pass and writes four files; ids that repeat, metrics without a number, no
                    samples
batch.py            batches joined with a model's outputs: how many samples (`limit` cuts the last batch, none is
                    padded), the number of predictions must fit; ids and columns
sample_metric.py    metrics of single samples: names that are reserved or given twice, what a function may return,
                    higher or lower is better
shipped_metrics.py  cross-entropy, accuracy, top-k, IoU, Dice, rates, errors: their formulas, thresholds, empty masks,
                    shapes that do not fit
text_metrics.py     exact match, F1 of words, ROUGE, loss of each text: case and punctuation
outcome.py          classification, regression, segmentation or text: which it is; label, prediction, confidence,
                    confusion matrix (at most 1000 classes)
sample_table.py     the rows as CSV and Parquet, types of columns; statistics and histogram of each metric
gallery.py          which samples a report shows: the 24 worst by each metric, 4 of each confusion, 300 in all
display.py          a sample as a picture, text or numbers: sizes, brightness, masks
task_samples.py     `everstep eval --samples`: a task's validation data sample by sample, with the metrics that fit it
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
