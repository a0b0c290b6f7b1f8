"""How the numbers of an array are distributed: counts between edges."""

import dataclasses

import numpy as np

BINS = 32
"""Between how many pairs of edges numbers are counted."""


@dataclasses.dataclass(frozen=True)
class Histogram:
    """Counts of the finite numbers of an array.

    Attributes:
      counts: How many there are between two edges.
      edges: One more than there are counts.
      total: The sum of the numbers.
      squares: The sum of their squares.
    """

    counts: list[int]
    edges: list[float]
    total: float
    squares: float


def histogram(values: np.ndarray) -> Histogram | None:
    """Returns the histogram of an array; None where it has no finite number."""
    numbers = np.asarray(values, dtype=np.float64).reshape(-1)
    numbers = numbers[np.isfinite(numbers)]
    if not numbers.size:
        return None
    with np.errstate(all="ignore"):
        counts, edges = _counted(numbers)
        return Histogram(counts.tolist(), edges.tolist(), float(numbers.sum()), float(np.square(numbers).sum()))


def _counted(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    try:
        return np.histogram(numbers, bins=BINS)
    except ValueError:  # they are too near to each other, or too far apart, to be told apart by so many edges
        return np.array([numbers.size]), np.array([numbers.min(), numbers.max()])
