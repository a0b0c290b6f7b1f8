"""The evaluator: batches in, files out, one pass.

reports/test.csv            id and metrics, a row per sample
reports/test.parquet        the same with label, prediction, confidence and the data's own columns
reports/test_summary.csv    count, mean, std, min, quartiles, max of each metric
reports/test.json           what a page is made of: means, histograms, confusion, the samples to look at
"""

import json
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.evaluation.kinds import Kind
from everstep.evaluation.metric import SampleMetric, sample_metrics
from everstep.evaluation.record import Record
from everstep.evaluation.summary import Summary, as_csv, read_column, summarize

FORMAT = 1
SUFFIXES = (".csv", ".parquet", "_summary.csv", ".json")
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Evaluation:
    """What an evaluation found.

    Attributes:
      split: Which data it was: "validation", "test".
      rows: How many samples.
      kind: Which kind of problem it was taken for.
      means: The mean of each metric over the samples that have a number; NaN where none has.
      counts: How many samples have a number, by metric.
    """

    split: str
    rows: int
    kind: Kind
    means: dict[str, float]
    counts: dict[str, int]


class Evaluator:
    """Measures samples and writes down what it found, in memory that does not grow with their number.

    Example:
      evaluator = Evaluator({"error": lambda y_true, y_pred: abs(y_true - y_pred)}, kind="regression")
      evaluation = evaluator.run([(["a", "b"], y_true, y_pred)], "reports", "test")

    Args:
      metrics: A dict from name to function, or a list of metrics (see `sample_metrics`).
      kind: "classification", "regression", "segmentation" or "values"; None: as the first batch looks.
      classes: Names of the classes, in order.
      from_logits: Whether predictions over classes are logits; None: as the first batch looks.
      show: Makes of one sample's input what is shown of it: `lambda x: x.reshape(28, 28)`.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any] | Iterable[Any],
        *,
        kind: Kind | None = None,
        classes: Sequence[str] | None = None,
        from_logits: bool | None = None,
        show: Callable[[Any], Any] | None = None,
    ):
        self._metrics = sample_metrics(metrics)
        self._kind: Kind | None = kind
        self._classes = None if classes is None else [str(name) for name in classes]
        self._from_logits = from_logits
        self._show = show

    def run(
        self,
        batches: Iterable[Any],
        directory: storage.PathLike,
        split: str,
        *,
        overall: Mapping[str, float] | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Evaluation:
        """Evaluates every batch and writes the files of `split`, each whole or not at all.

        Args:
          batches: `SampleBatch`es, or tuples `(ids, y_true, y_pred, inputs, columns)`, the last two optional.
          directory: Where the files go; it is created.
          split: What they are named by: "validation", "test".
          overall: What the model's own metrics say. It is read last, so it may be filled while batches pass.
          progress: Called after each batch with the number of samples so far.

        Raises:
          UsageError: There are no samples, a batch does not fit, or a metric does not give numbers; no file changes.
        """
        folder = _prepared(directory, split)
        record = Record(self._metrics, self._kind, len(self._classes or ()), self._from_logits, self._show)
        table, rows, last = (folder / f"{split}{suffix}" for suffix in (".csv", ".parquet", ".json"))
        with storage.atomic_path(table) as new_table, storage.atomic_path(rows) as new_rows:
            record.write(batches, new_table, new_rows, progress or (lambda rows: None))
            summaries = {m.name: summarize(read_column(new_rows, m.name)) for m in self._metrics}
            page = self._page(record, split, summaries, overall or {})
            _warn(record.rows, record.repeated_ids, summaries)
            last.unlink(missing_ok=True)  # first to go, last to come: where it is, all four belong together
        storage.write_text(folder / f"{split}_summary.csv", as_csv(summaries))
        storage.write_text(last, page)
        return Evaluation(
            split,
            record.rows,
            record.kind,
            {name: summary.mean for name, summary in summaries.items()},
            {name: summary.count for name, summary in summaries.items()},
        )

    def _page(self, record: Record, split: str, summaries: Mapping[str, Summary], overall: Mapping[str, Any]) -> str:
        """Returns the JSON that a page is made of."""
        page = {
            "format": FORMAT,
            "split": split,
            "kind": record.kind,
            "rows": record.rows,
            "classes": self._classes,
            "metrics": [_described(metric, summaries[metric.name]) for metric in self._metrics],
            "confusion": record.confusion,
            "overall": {str(name): _finite(float(value)) for name, value in overall.items()},
            "samples": record.samples,
        }
        return json.dumps(page, ensure_ascii=False, allow_nan=False) + "\n"


def _prepared(directory: storage.PathLike, split: str) -> Path:
    """Makes the directory ready, without what an evaluation that was killed left in it."""
    if not re.fullmatch(r"\w[\w-]*", split):
        raise UsageError(f"a split is named by letters, digits, _ and -: received {split!r}")
    folder = Path(directory)
    storage.prepare_directory(folder)
    for entry in folder.iterdir():
        if storage.is_temporary(entry) and entry.name.split("-", 2)[-1] in [f"{split}{suffix}" for suffix in SUFFIXES]:
            entry.unlink(missing_ok=True)
    return folder


def _described(metric: SampleMetric, summary: Summary) -> dict[str, Any]:
    return {
        "name": metric.name,
        "description": metric.description,
        "better": metric.better,
        "mean": _finite(summary.mean),
        "count": summary.count,
        "histogram": {"edges": summary.edges, "counts": summary.counts},
    }


def _warn(rows: int, repeated: int, summaries: Mapping[str, Summary]) -> None:
    if repeated:
        logger.warning("%d of %d samples have the id of an earlier one", repeated, rows)
    for name, summary in summaries.items():
        if summary.count < rows:
            logger.warning("metric %r has no number for %d of %d samples", name, rows - summary.count, rows)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
