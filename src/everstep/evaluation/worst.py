"""Which samples a reader should look at: the worst by each metric, and some of every confusion.

Both keep a bounded number of row numbers while the data pass, and of samples that are equally bad the first.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from everstep.evaluation.metric import Better

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
