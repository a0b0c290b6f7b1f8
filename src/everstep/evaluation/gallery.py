"""The samples that a page shows, drawn while their inputs are at hand."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.errors import UsageError
from everstep.evaluation import arrays, display
from everstep.evaluation.batch import CheckedBatch
from everstep.evaluation.metric import SampleMetric
from everstep.evaluation.worst import IN_ALL, Confused, worst_of_each

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
            text = f"show failed on sample {batch.ids[i]!r}: {type(error).__name__}: {error}"
            raise UsageError(f"{text}; it takes one input and returns an image, a text or numbers") from error


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
