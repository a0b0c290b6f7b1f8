"""One pass over the data: every batch is checked, measured, written and looked through."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation.batch import CheckedBatch, Reader
from everstep.evaluation.gallery import Gallery
from everstep.evaluation.kinds import Kind
from everstep.evaluation.metric import SampleMetric
from everstep.evaluation.outcome import Outcome, Plain, outcome_of
from everstep.evaluation.scoring import scores
from everstep.evaluation.table import Table, check_columns


class Record:
    """What is known of the samples so far; the arguments are the evaluator's.

    Attributes:
      kind: The kind of problem, known from the first batch on.
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
        self._reader = Reader()
        self._outcome: Outcome = Plain()
        self._gallery = Gallery(metrics, show)

    @property
    def rows(self) -> int:
        """How many samples there were."""
        return self._reader.rows

    @property
    def repeated_ids(self) -> int:
        """How many samples have an id that an earlier one has."""
        return self._reader.repeated_ids()

    @property
    def confusion(self) -> list[list[int]] | None:
        """How often each class (row) was taken for each (column); None where there are no classes, or too many."""
        matrix = self._outcome.confusion
        return None if matrix is None else matrix.tolist()

    @property
    def samples(self) -> list[dict[str, Any]]:
        """The samples to look at."""
        return self._gallery.samples()

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
                batch = self._reader.read(item)
                if batch.ids:
                    self._add(batch, table)
                    progress(self.rows)
            if not self.rows:
                raise UsageError("the data gave no samples: there is nothing to evaluate")

    def _add(self, batch: CheckedBatch, table: Table) -> None:
        if batch.first_row == 0:
            self._begin(batch)
        values = {m.name: scores(m, batch.ids, batch.y_true, batch.y_pred) for m in self._metrics}
        outcome = self._outcome.columns(batch.y_true, batch.y_pred)
        table.add(batch.ids, values, outcome, batch.columns)
        masks = (
            self.kind == "segmentation"
            and isinstance(batch.y_true, np.ndarray)
            and isinstance(batch.y_pred, np.ndarray)
        )
        self._gallery.offer(batch, values, outcome, masks=masks, cells=self._outcome.confusion is not None)

    def _begin(self, batch: CheckedBatch) -> None:
        kind, classes, from_logits = self._given
        check_columns(list(batch.columns), [metric.name for metric in self._metrics])
        self.kind, self._outcome = outcome_of(kind, batch.y_true, batch.y_pred, classes, from_logits)
