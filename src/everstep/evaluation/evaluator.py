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

import numpy as np

from everstep import storage
from everstep.errors import UsageError
from everstep.evaluation.batch import CheckedBatch, Reader
from everstep.evaluation.gallery import Gallery
from everstep.evaluation.metric import SampleMetric, sample_metrics, scores
from everstep.evaluation.outcome import Kind, Outcome, Plain, outcome_of
from everstep.evaluation.table import Summary, Table, as_csv, check_columns, read_column, summarize

logger = logging.getLogger(__name__)


class _Pass:
    """One pass over the data: every batch is checked, measured, written, and searched for samples to show.

    Attributes:
      kind: The kind of problem, known from the first batch on.
      reader: Checks the batches, and counts their samples.
      outcome: Reads label, prediction and confidence.
      gallery: The samples to show.
    """

    def __init__(
        self,
        metrics: Sequence[SampleMetric],
        kind: Kind | None,
        classes: int,
        from_logits: bool | None,
        show: Callable[[Any], Any] | None,
    ):
        self.kind: Kind = kind or "values"
        self._given = kind, classes, from_logits
        self._metrics = metrics
        self.reader = Reader()
        self.outcome: Outcome = Plain()
        self.gallery = Gallery(metrics, show)

    def write(
        self, batches: Iterable[Any], csv_path: Path, parquet_path: Path, progress: Callable[[int], None]
    ) -> None:
        """Takes in all batches and writes a row for each of their samples.

        Args:
          batches: What is evaluated.
          csv_path: Where the rows go.
          parquet_path: Where they go with everything that is known of them.
          progress: Called after each batch with the number of samples so far.

        Raises:
          UsageError: There are no samples, or some do not fit.
        """
        names = [metric.name for metric in self._metrics]
        with (
            open(csv_path, "x", encoding="utf-8", newline="") as csv_file,
            open(parquet_path, "xb") as parquet_file,
            Table(csv_file, parquet_file, names) as table,
        ):
            for item in batches:
                batch = self.reader.read(item)
                if batch.ids:
                    self._add(batch, table)
                    progress(self.reader.rows)
            if not self.reader.rows:
                raise UsageError("the data gave no samples", key="batches")

    def _add(self, batch: CheckedBatch, table: Table) -> None:
        if batch.first_row == 0:
            self._begin(batch)
        values = {m.name: scores(m, batch.ids, batch.y_true, batch.y_pred) for m in self._metrics}
        outcome = self.outcome.columns(batch.y_true, batch.y_pred)
        table.add(batch.ids, values, outcome, batch.columns)
        masks = (
            self.kind == "segmentation"
            and isinstance(batch.y_true, np.ndarray)
            and isinstance(batch.y_pred, np.ndarray)
        )
        self.gallery.offer(batch, values, outcome, masks=masks, cells=self.outcome.confusion is not None)

    def _begin(self, batch: CheckedBatch) -> None:
        kind, classes, from_logits = self._given
        check_columns(list(batch.columns), [metric.name for metric in self._metrics])
        self.kind, self.outcome = outcome_of(kind, batch.y_true, batch.y_pred, classes, from_logits)


FORMAT = 1
SUFFIXES = (".csv", ".parquet", "_summary.csv", ".json")


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
        passed = _Pass(self._metrics, self._kind, len(self._classes or ()), self._from_logits, self._show)
        table, rows, last = (folder / f"{split}{suffix}" for suffix in (".csv", ".parquet", ".json"))
        with storage.atomic_path(table) as new_table, storage.atomic_path(rows) as new_rows:
            passed.write(batches, new_table, new_rows, progress or (lambda rows: None))
            summaries = {m.name: summarize(read_column(new_rows, m.name)) for m in self._metrics}
            page = self._page(passed, split, summaries, overall or {})
            _warn(passed.reader.rows, passed.reader.repeated_ids(), summaries)
            last.unlink(missing_ok=True)  # first to go, last to come: where it is, all four belong together
        storage.write_text(folder / f"{split}_summary.csv", as_csv(summaries))
        storage.write_text(last, page)
        return Evaluation(
            split,
            passed.reader.rows,
            passed.kind,
            {name: summary.mean for name, summary in summaries.items()},
            {name: summary.count for name, summary in summaries.items()},
        )

    def _page(self, passed: _Pass, split: str, summaries: Mapping[str, Summary], overall: Mapping[str, Any]) -> str:
        """Returns the JSON that a page is made of."""
        page = {
            "format": FORMAT,
            "split": split,
            "kind": passed.kind,
            "rows": passed.reader.rows,
            "classes": self._classes,
            "metrics": [_described(metric, summaries[metric.name]) for metric in self._metrics],
            "confusion": None if passed.outcome.confusion is None else passed.outcome.confusion.tolist(),
            "overall": {str(name): _finite(float(value)) for name, value in overall.items()},
            "samples": passed.gallery.samples(),
        }
        return json.dumps(page, ensure_ascii=False, allow_nan=False) + "\n"


def _prepared(directory: storage.PathLike, split: str) -> Path:
    """Makes the directory ready, without what an evaluation that was killed left in it."""
    if not re.fullmatch(r"\w[\w-]*", split):
        raise UsageError("must consist of letters, digits, _ and -", key="split", received=split)
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
