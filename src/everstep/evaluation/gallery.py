"""The samples that a report shows: the worst by each metric, and some for every cell of the confusion matrix.

A bounded number of samples is kept during the pass over the data, and drawn while their inputs are in memory. Of
equally bad samples the first ones are kept.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation import arrays, display
from everstep.evaluation.batch import CheckedBatch
from everstep.evaluation.outcome import OutcomeKind
from everstep.evaluation.sample_metric import Better, SampleMetric

PER_METRIC = 24
PER_CELL = 4
IN_ALL = 300


class Worst:
    """The rows with the worst values so far, worst first.

    Args:
      better: Which values are good; None means "lower".
      size: The number of rows to keep.
    """

    def __init__(self, better: Better | None, size: int):
        self._sign = -1.0 if better == "higher" else 1.0
        self._size = size
        self._badness = np.empty(0)
        self.rows = np.empty(0, np.int64)

    def offer(self, first_row: int, values: np.ndarray) -> bool:
        """Keeps the rows of a batch that are bad enough; returns whether there are any. NaNs are not kept."""
        badness = self._sign * values
        floor = self._badness[-1] if len(self.rows) == self._size else -np.inf
        bad = np.flatnonzero(badness > floor)
        if not bad.size:
            return False
        every = np.concatenate([self._badness, badness[bad]])
        order = np.argsort(-every, kind="stable")[: self._size]
        self._badness = every[order]
        self.rows = np.concatenate([self.rows, first_row + bad])[order]
        return True


class Confused:
    """The first few rows of every off-diagonal cell of the confusion matrix."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], list[int]] = {}

    def offer(self, first_row: int, labels: np.ndarray, predicted: np.ndarray) -> bool:
        """Keeps the rows of a batch whose cells are not full; returns whether there are any.

        Rows without a prediction belong to no cell.
        """
        changed = False
        for i in np.flatnonzero((labels != predicted) & (predicted >= 0)).tolist():
            cell = int(labels[i]), int(predicted[i])
            rows = self._cells.get(cell, []) if len(self._cells) == IN_ALL else self._cells.setdefault(cell, [])
            if cell in self._cells and len(rows) < PER_CELL:
                rows.append(first_row + i)
                changed = True
        return changed

    def rows(self) -> Iterator[int]:
        """Yields the first row of every cell, then the second ones, and so on."""
        for rank in range(PER_CELL):
            yield from (rows[rank] for rows in self._cells.values() if len(rows) > rank)


Numbers = Mapping[str, np.ndarray]


class Gallery:
    """Collects the samples to show, at most 300.

    Args:
      metrics: The metrics by which samples are ranked.
      show: Converts one sample's input to what is shown (an image, a text, numbers).
    """

    def __init__(self, metrics: Sequence[SampleMetric], show: Callable[[Any], Any] | None = None):
        size = max(1, min(PER_METRIC, IN_ALL // max(1, len(metrics))))  # with many metrics, fewer for each
        self._worst = {metric.name: Worst(metric.better, size) for metric in metrics}
        self._confused = Confused()
        self._show = show
        self._samples: dict[int, dict[str, Any]] = {}

    def offer(self, batch: CheckedBatch, values: Numbers, outcome: Numbers, kind: OutcomeKind, cells: bool) -> None:
        """Keeps the samples of a batch that are among the worst, and drops those that no longer are.

        Args:
          batch: The samples.
          values: Their metrics.
          outcome: Label, prediction and confidence, as far as they are known.
          kind: The kind of problem: masks and texts are shown as target and output, beside the input.
          cells: Whether labels and predictions are classes, with a confusion matrix.
        """
        changed = [worst.offer(batch.first_row, values[name]) for name, worst in self._worst.items()]
        changed += [self._confused.offer(batch.first_row, outcome["label"], outcome["prediction"])] if cells else []
        if any(changed):
            wanted = {row for worst in self._worst.values() for row in worst.rows.tolist()} | set(self._confused.rows())
            new = {row: self._sample(row, batch, values, outcome, kind) for row in wanted - self._samples.keys()}
            self._samples = {row: sample for row, sample in (self._samples | new).items() if row in wanted}

    def samples(self) -> list[dict[str, Any]]:
        """Returns the samples in the order of the data, each with the ranks for which it was chosen."""
        reasons: dict[int, list[dict[str, Any]]] = {}
        for name, worst in self._worst.items():
            for rank, row in enumerate(worst.rows.tolist(), start=1):
                reasons.setdefault(row, []).append({"metric": name, "rank": rank})
        for row in self._confused.rows():
            if len(reasons) < IN_ALL:
                reasons.setdefault(row, [])
        return [{**self._samples[row], "reasons": reasons[row]} for row in sorted(reasons)[:IN_ALL]]

    def _sample(
        self, row: int, batch: CheckedBatch, values: Numbers, outcome: Numbers, kind: OutcomeKind
    ) -> dict[str, Any]:
        i = row - batch.first_row
        sample = {"id": batch.ids[i], "row": row}
        numbers = {} if kind == "text" else outcome
        sample |= {name: _plain(numbers[name][i]) if name in numbers else None for name in OUTCOME}
        sample["values"] = {name: _plain(values[name][i]) for name in values}
        if batch.inputs is not None:
            sample["input"] = self._shown(batch, i)
        if kind == "text":
            sample["target"] = display.shown(outcome["label"][i])
            sample["output"] = display.shown(outcome["prediction"][i])
        elif kind == "segmentation" and isinstance(batch.y_true, np.ndarray) and isinstance(batch.y_pred, np.ndarray):
            sample["target"] = display.mask_shown(arrays.at(batch.y_true, i), _num_classes(batch))
            sample["output"] = display.mask_shown(arrays.at(batch.y_pred, i))
        return sample

    def _shown(self, batch: CheckedBatch, i: int) -> dict[str, Any]:
        one = arrays.at(arrays.listed(batch.inputs), i)
        if self._show is None:
            return display.shown(one)
        try:
            return display.shown(self._show(one))
        except Exception as error:
            raise UsageError(
                f"failed on sample {batch.ids[i]!r}: {type(error).__name__}: {error}",
                key="show",
                remedy="take one input and return an image, a text or numbers",
            ) from error


OUTCOME = ("label", "prediction", "confidence")


def _num_classes(batch: CheckedBatch) -> int:
    """Returns the number of classes of a mask of class numbers; 0 for a mask with a channel per class."""
    classes = int(batch.y_pred.shape[-1])
    is_numbers = batch.y_true.ndim == batch.y_pred.ndim - 1 or batch.y_true.shape[-1] == 1 < classes
    return classes if is_numbers else 0


def _plain(value: Any) -> float | int | None:
    """Returns a number for JSON; None for a missing one."""
    number = value.item()
    if isinstance(number, int):
        return number if number >= 0 else None
    return number if math.isfinite(number) else None
