"""Search: mean average precision, top-k and open-set identification, from one pass over the scores.

Ties count against the model, and nothing depends on the order of the gallery: a model that maps every image to one
point finds nothing first.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from everstep.bct.scores import Block, Comparison
from everstep.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Ranking:
    """What each query found.

    Attributes:
      precision: Average precision; NaN for a query without a mate in the gallery.
      place: The place of its best mate, 1 for the first; 0 without one.
      best_mate: The highest score of a mate; minus infinity without one.
      best_other: The highest score of anything else; minus infinity where all are mates.
    """

    precision: np.ndarray
    place: np.ndarray
    best_mate: np.ndarray
    best_other: np.ndarray

    @property
    def mated(self) -> np.ndarray:
        """Which queries have a mate in the gallery."""
        return self.place > 0

    def mean_average_precision(self) -> float:
        """Returns the mean over the queries that have a mate.

        Raises:
          UsageError: None has.
        """
        return float(self.precision[self._require_mated()].mean())

    def top(self, k: int) -> float:
        """Returns the share of queries with a mate that find one among the first `k`: the CMC curve at `k`.

        Raises:
          UsageError: No query has a mate, or `k` is below 1.
        """
        if k < 1:
            raise UsageError(f"k: received {k}, must be at least 1")
        return float((self.place[self._require_mated()] <= k).mean())

    def tpir_at_fpir(self, fpir: float) -> float:
        """Returns the share of queries with a mate that find one first, and above a false alarm rate's threshold.

        The threshold is the lowest at which at most that share of the queries without a mate find anything.

        Raises:
          UsageError: The rate is not from 0 to below 1, or there are no queries with, or none without, a mate.
        """
        if not 0 <= fpir < 1:
            raise UsageError(f"fpir: received {fpir}, must be from 0 to below 1")
        mated = self._require_mated()
        alarms = self.best_other[~self.mated]
        if not len(alarms):
            raise UsageError("every query has a mate in the gallery: a false alarm rate needs queries that have none")
        allowed = math.floor(fpir * len(alarms) + 1e-9)
        threshold = np.sort(alarms)[::-1][allowed]
        best = self.best_mate[mated]
        return float(((best > self.best_other[mated]) & (best > threshold)).mean())

    def _require_mated(self) -> np.ndarray:
        if not self.mated.any():
            raise UsageError("no query has a mate in the gallery: not one label is in both")
        return self.mated


def rank(query: Any, gallery: Any, query_labels: Any, gallery_labels: Any, **settings: Any) -> Ranking:
    """Looks every query up in the gallery.

        found = rank(new_vectors, old_vectors, labels, labels, same_images=True)
        found.mean_average_precision(), found.top(1)

    The arguments are those of `Comparison`.

    Raises:
      UsageError: They do not fit.
    """
    return ranking(Comparison(query, gallery, query_labels, gallery_labels, **settings))


def ranking(comparison: Comparison) -> Ranking:
    """Returns what the queries of a comparison find."""
    count = len(comparison)
    found = Ranking(
        precision=np.full(count, np.nan),
        place=np.zeros(count, "int64"),
        best_mate=np.full(count, -np.inf, "float32"),
        best_other=np.full(count, -np.inf, "float32"),
    )
    for block in comparison.blocks():
        _add(found, block)
    return found


def _add(found: Ranking, block: Block) -> None:
    found.best_mate[block.rows] = np.where(block.mates, block.scores, -np.inf).max(axis=1)
    found.best_other[block.rows] = np.where(block.mates, -np.inf, block.scores).max(axis=1)
    mated = block.mates.any(axis=1)
    for offset in np.flatnonzero(mated):
        row, mates = block.scores[offset], block.mates[offset]
        query = block.rows.start + offset
        found.precision[query], found.place[query] = _one(np.sort(row), np.sort(row[mates]))


def _one(scores: np.ndarray, mates: np.ndarray) -> tuple[float, int]:
    """Returns average precision and the best mate's place, from sorted scores of all and of the mates.

    At each mate's score: how many of all that score as high or higher are mates. Equal scores are one step.
    """
    above = len(scores) - np.searchsorted(scores, mates, "left")
    hits = len(mates) - np.searchsorted(mates, mates, "left")
    return float((hits / above).mean()), int(above[-1] - hits[-1] + 1)
