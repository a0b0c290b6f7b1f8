"""Verification, 1:1: how many true pairs are accepted at a threshold that lets few false ones through.

The threshold is one of the false pairs' scores, and there may be ten thousand million of them. It is found exactly in
two passes: float32 numbers become whole numbers in the same order; the first pass counts them by their upper sixteen
bits, the second by the lower ones where it matters.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from everstep.bct.scores import Block, Comparison
from everstep.errors import UsageError

_BITS = 16
_HALF = 1 << _BITS
_ROWS = 64


def tar_at_far(
    query: Any,
    gallery: Any,
    query_labels: Any,
    gallery_labels: Any,
    far: Sequence[float] = (1e-3,),
    **settings: Any,
) -> list[float]:
    """Returns the true accept rate at each false accept rate.

    A pair is a query and an item of the gallery; of the same images, no pair is an image with itself. The threshold is
    the lowest at which at most that share of the false pairs is accepted.

    Args:
      query: As for `Comparison`, like the next three and `settings`.
      gallery: See there.
      query_labels: See there.
      gallery_labels: See there.
      far: False accept rates.
      **settings: See there.

    Raises:
      UsageError: A rate is not from 0 to below 1, or there are no true or no false pairs.
    """
    return accept_rates(Comparison(query, gallery, query_labels, gallery_labels, **settings), far)


def accept_rates(comparison: Comparison, far: Sequence[float]) -> list[float]:
    """Returns the true accept rates of a comparison; see `tar_at_far`."""
    for rate in far:
        if not 0 <= rate < 1:
            raise UsageError(f"far: received {rate}, must be from 0 to below 1")
    upper = np.zeros((2, _HALF), "int64")
    for block in comparison.blocks():
        for kind, codes in _pairs(block):
            upper[kind] += _counted(codes >> np.uint32(_BITS))
    totals = upper.sum(axis=1)
    if not totals.all():
        raise UsageError(f"there are {totals[1]} true and {totals[0]} false pairs: both kinds are needed")
    return _rates(comparison, upper, [math.floor(rate * int(totals[0]) + 1e-9) for rate in far])


def _rates(comparison: Comparison, upper: np.ndarray, allowed: list[int]) -> list[float]:
    """Returns the share of true pairs above the false pair that comes after the `allowed` highest ones."""
    places = [_from_top(upper[0], count) for count in allowed]
    lower = {bucket: np.zeros((2, _HALF), "int64") for bucket, _ in places}
    for block in comparison.blocks():
        for kind, codes in _pairs(block):
            for bucket, counts in lower.items():
                inside = codes[(codes >> np.uint32(_BITS)) == bucket]
                counts[kind] += _counted(inside & np.uint32(_HALF - 1))
    rates = []
    for bucket, left in places:
        digit, _ = _from_top(lower[bucket][0], left)
        accepted = upper[1, bucket + 1 :].sum() + lower[bucket][1, digit + 1 :].sum()
        rates.append(float(accepted / upper[1].sum()))
    return rates


def _from_top(counts: np.ndarray, skip: int) -> tuple[int, int]:
    """Returns the bucket that holds the next one after the `skip` highest, and how many of those are in it."""
    above = np.cumsum(counts[::-1])
    position = int(np.searchsorted(above, skip, "right"))
    before = int(above[position - 1]) if position else 0
    return len(counts) - 1 - position, skip - before


def _pairs(block: Block) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the false (0) and the true (1) pairs of a block, some rows at a time, as numbers ordered as the scores."""
    for start in range(0, len(block.scores), _ROWS):
        scores, mates = block.scores[start : start + _ROWS], block.mates[start : start + _ROWS]
        yield 0, _ordered(scores[~mates & (scores > -np.inf)])
        yield 1, _ordered(scores[mates])


def _counted(digits: np.ndarray) -> np.ndarray:
    return np.bincount(digits, minlength=_HALF)


def _ordered(scores: np.ndarray) -> np.ndarray:
    """Returns uint32 numbers that are ordered as the float32 scores are."""
    bits = (scores + np.float32(0)).view("uint32")  # adding zero makes -0 the same as 0
    flipped = (bits.view("int32") >> 31).view("uint32") | np.uint32(1 << 31)
    return bits ^ flipped
