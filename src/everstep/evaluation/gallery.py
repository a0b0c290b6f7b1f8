"""The samples that a report shows: the worst by each metric, and some of every confusion.

A bounded number of samples is kept while the data pass, drawn while their inputs are at hand; of equally bad samples
the first ones are kept.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation import arrays, display
from everstep.evaluation.batch import CheckedBatch
from everstep.evaluation.metric import Better, SampleMetric

PER_METRIC = 24
PER_CELL = 4
IN_ALL = 300


class Worst:
    """The rows with the worst values so far, worst first.

    Args:
      better: Which values are good; None is read as "lower".
      size: How many are kept.
    """

    def __init__(self, better: Better | None, size: int):
        self._sign = -1.0 if better == "higher" else 1.0
        self._size = size
        self._badness = np.empty(0)
        self.rows = np.empty(0, np.int64)

    def offer(self, first_row: int, values: np.ndarray) -> bool:
        """Takes in what is bad enough of a batch, and says if there was any; NaN says nothing, so it is not."""
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
    """The first few rows of every cell of the confusion matrix that is off the diagonal."""

    def __init__(self) -> None:
        self._cells: dict[tuple[int, int], list[int]] = {}

    def offer(self, first_row: int, labels: np.ndarray, predicted: np.ndarray) -> bool:
        """Takes in what a batch adds to cells that are not full, and says if there was any.

        Rows without a prediction are in no cell.
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
        """Yields rows, the first of every cell before the second of any."""
        for rank in range(PER_CELL):
            yield from (rows[rank] for rows in self._cells.values() if len(rows) > rank)


def worst_of_each(betters: Sequence[Better | None]) -> list[Worst]:
    """Returns a `Worst` for each metric; with many metrics each keeps fewer, so that all together fit."""
    size = min(PER_METRIC, IN_ALL // max(1, len(betters)))
    return [Worst(better, max(1, size)) for better in betters]


Numbers = Mapping[str, np.ndarray]


class Gallery:
    """Keeps the samples worth looking at, at most 300 in the end.

    Args:
      metrics: What the worst are found by.
      show: Makes of one sample's input what is shown of it (an image, a text, numbers).
    """

    def __init__(self, metrics: Sequence[SampleMetric], show: Callable[[Any], Any] | None = None):
        self._worst = dict(zip([m.name for m in metrics], worst_of_each([m.better for m in metrics]), strict=True))
        self._confused = Confused()
        self._show = show
        self._samples: dict[int, dict[str, Any]] = {}

    def offer(self, batch: CheckedBatch, values: Numbers, outcome: Numbers, masks: bool, cells: bool) -> None:
        """Takes in what is worth it of a batch, and lets go of what no longer is.

        Args:
          batch: The samples.
          values: Their metrics.
          outcome: Label, prediction, confidence, where there are.
          masks: Whether labels and predictions are masks, to be shown as pictures.
          cells: Whether labels and predictions are classes that can be confused.
        """
        changed = [worst.offer(batch.first_row, values[name]) for name, worst in self._worst.items()]
        changed += [self._confused.offer(batch.first_row, outcome["label"], outcome["prediction"])] if cells else []
        if any(changed):
            wanted = {row for worst in self._worst.values() for row in worst.rows.tolist()} | set(self._confused.rows())
            new = {row: self._sample(row, batch, values, outcome, masks) for row in wanted - self._samples.keys()}
            self._samples = {row: sample for row, sample in (self._samples | new).items() if row in wanted}

    def samples(self) -> list[dict[str, Any]]:
        """Returns the samples in the order of the data, each with why it is there."""
        reasons: dict[int, list[dict[str, Any]]] = {}
        for name, worst in self._worst.items():
            for rank, row in enumerate(worst.rows.tolist(), start=1):
                reasons.setdefault(row, []).append({"metric": name, "rank": rank})
        for row in self._confused.rows():
            if len(reasons) < IN_ALL:
                reasons.setdefault(row, [])
        return [{**self._samples[row], "reasons": reasons[row]} for row in sorted(reasons)[:IN_ALL]]

    def _sample(self, row: int, batch: CheckedBatch, values: Numbers, outcome: Numbers, masks: bool) -> dict[str, Any]:
        i = row - batch.first_row
        sample = {"id": batch.ids[i], "row": row}
        sample |= {name: _plain(outcome[name][i]) if name in outcome else None for name in OUTCOME}
        sample["values"] = {name: _plain(values[name][i]) for name in values}
        if batch.inputs is not None:
            sample["input"] = self._shown(batch, i)
        if masks:
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
    """Returns how many classes the numbers of a mask are of; 0 where a mask has a channel for each."""
    classes = int(batch.y_pred.shape[-1])
    is_numbers = batch.y_true.ndim == batch.y_pred.ndim - 1 or batch.y_true.shape[-1] == 1 < classes
    return classes if is_numbers else 0


def _plain(value: Any) -> float | int | None:
    """Returns a number that JSON can spell; a missing one is None."""
    number = value.item()
    if isinstance(number, int):
        return number if number >= 0 else None
    return number if math.isfinite(number) else None
