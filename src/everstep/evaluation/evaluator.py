"""The evaluator: measures batches in one pass and writes four files.

reports/test.csv            id and metrics, a row per sample
reports/test.parquet        the same with label, prediction, confidence and the data's own columns
reports/test_summary.csv    count, mean, std, min, quartiles, max of each metric
reports/test.json           the content of a report: means, histograms, confusion, the samples to show
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
from everstep.evaluation.batch import BatchReader, CheckedBatch
from everstep.evaluation.gallery import Gallery
from everstep.evaluation.outcome import Outcome, OutcomeKind, Plain, outcome_of
from everstep.evaluation.sample_metric import SampleMetric, sample_metrics, scores
from everstep.evaluation.sample_table import Summary, Table, as_csv, check_columns, read_column, summarize

logger = logging.getLogger(__name__)

FORMAT = 1
"""The version of the JSON file's format, which reports check."""

SUFFIXES = (".csv", ".parquet", "_summary.csv", ".json")


@dataclass(frozen=True)
class Evaluation:
    """The result of an evaluation.

    Attributes:
      split: The name of the data: "validation", "test".
      rows: The number of samples.
      kind: The kind of problem.
      means: The mean of each metric over the samples that have a value; NaN if none has.
      counts: The number of samples that have a value, by metric.
    """

    split: str
    rows: int
    kind: OutcomeKind
    means: dict[str, float]
    counts: dict[str, int]


class Evaluator:
    """Measures samples and writes the results, in memory that does not grow with the number of samples.

    Example:
      evaluator = Evaluator({"error": lambda y_true, y_pred: abs(y_true - y_pred)}, kind="regression")
      evaluation = evaluator.run([(["a", "b"], y_true, y_pred)], "reports", "test")

    Args:
      metrics: A dict from name to function, or a list of metrics (see `sample_metrics`).
      kind: "classification", "regression", "segmentation", "text" or "values"; None to infer it from the first batch.
      classes: Names of the classes, in order.
      from_logits: Whether predictions over classes are logits; None to infer it from the first batch.
      show: Converts one sample's input to what a report shows: `lambda x: x.reshape(28, 28)`.
    """

    def __init__(
        self,
        metrics: Mapping[str, Any] | Iterable[Any],
        *,
        kind: OutcomeKind | None = None,
        classes: Sequence[str] | None = None,
        from_logits: bool | None = None,
        show: Callable[[Any], Any] | None = None,
    ):
        self._metrics = sample_metrics(metrics)
        self._kind: OutcomeKind | None = kind
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
        total: Callable[[], int | None] | None = None,
    ) -> Evaluation:
        """Evaluates every batch and writes the files of `split`, each completely or not at all.

        Args:
          batches: `SampleBatch`es, or tuples `(ids, y_true, y_pred, inputs, columns)`, the last two optional.
          directory: The folder for the files; it is created.
          split: The name of the data, which the file names begin with: "validation", "test".
          overall: The values of the model's own metrics. It is read last, so it may be filled by the iteration.
          progress: Called after each batch with the number of samples so far.
          total: Returns how many samples the data has, where `batches` may be a part of it, None if that is unknown; it
            is called last. A part is labelled in reports, and not compared with the whole.

        Raises:
          UsageError: There are no samples, a batch does not fit, or a metric does not return numbers; no file changes.
        """
        folder = _prepared(directory, split)
        passed = _Pass(self._metrics, self._kind, len(self._classes or ()), self._from_logits, self._show)
        table, rows, last = (folder / f"{split}{suffix}" for suffix in (".csv", ".parquet", ".json"))
        with storage.atomic_path(table) as new_table, storage.atomic_path(rows) as new_rows:
            passed.write(batches, new_table, new_rows, progress or (lambda rows: None))
            summaries = {m.name: summarize(read_column(new_rows, m.name)) for m in self._metrics}
            page = self._page(passed, split, summaries, overall or {}, total)
            _warn(passed.reader.rows, passed.reader.repeated_ids(), summaries)
            last.unlink(missing_ok=True)  # removed first and written last: if it exists, all four belong together
        storage.write_text(folder / f"{split}_summary.csv", as_csv(summaries))
        storage.write_text(last, page)
        return Evaluation(
            split,
            passed.reader.rows,
            passed.kind,
            {name: summary.mean for name, summary in summaries.items()},
            {name: summary.count for name, summary in summaries.items()},
        )

    def _page(
        self,
        passed: "_Pass",
        split: str,
        summaries: Mapping[str, Summary],
        overall: Mapping[str, Any],
        total: Callable[[], int | None] | None,
    ) -> str:
        """Returns the content of the JSON file."""
        of = passed.reader.rows if total is None else total()
        page = {
            "format": FORMAT,
            "split": split,
            "kind": passed.kind,
            "rows": passed.reader.rows,
            **({} if of == passed.reader.rows else {"part_of": of}),
            "classes": self._classes,
            "metrics": [_described(metric, summaries[metric.name]) for metric in self._metrics],
            "confusion": None if passed.outcome.confusion is None else passed.outcome.confusion.tolist(),
            "overall": {str(name): _finite(float(value)) for name, value in overall.items()},
            "samples": passed.gallery.samples(),
        }
        return json.dumps(page, ensure_ascii=False, allow_nan=False) + "\n"


class _Pass:
    """One pass over the data: every batch is checked, measured, written, and searched for samples to show.

    Attributes:
      kind: The kind of problem, known after the first batch.
      reader: Checks the batches and counts their samples.
      outcome: Extracts label, prediction and confidence.
      gallery: Collects the samples to show.
    """

    def __init__(
        self,
        metrics: Sequence[SampleMetric],
        kind: OutcomeKind | None,
        classes: int,
        from_logits: bool | None,
        show: Callable[[Any], Any] | None,
    ):
        self.kind: OutcomeKind = kind or "values"
        self._given = kind, classes, from_logits
        self._metrics = metrics
        self.reader = BatchReader()
        self.outcome: Outcome = Plain()
        self.gallery = Gallery(metrics, show)

    def write(
        self, batches: Iterable[Any], csv_path: Path, parquet_path: Path, progress: Callable[[int], None]
    ) -> None:
        """Reads all batches and writes a row for each sample.

        Args:
          batches: The batches to evaluate.
          csv_path: The file for ids and metrics.
          parquet_path: The file for ids, metrics and all other columns.
          progress: Called after each batch with the number of samples so far.

        Raises:
          UsageError: There are no samples, or a batch does not fit.
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
        self.gallery.offer(batch, values, outcome, self.kind, cells=self.outcome.confusion is not None)

    def _begin(self, batch: CheckedBatch) -> None:
        kind, classes, from_logits = self._given
        check_columns(list(batch.columns), [metric.name for metric in self._metrics])
        self.kind, self.outcome = outcome_of(kind, batch.y_true, batch.y_pred, classes, from_logits)


def _prepared(directory: storage.PathLike, split: str) -> Path:
    """Creates the directory, and removes temporary files of a killed evaluation."""
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
