"""A metric over all samples, from its column on disk: one column in memory at a time, eight bytes a row."""

import csv
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

BINS = 50
STATISTICS = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")


@dataclass(frozen=True)
class Summary:
    """What a column looks like; NaN is left out of everything, and a value is NaN where nothing is left.

    The numbers are those of pandas' `describe()`, under its names.
    """

    values: dict[str, float]
    edges: list[float]
    counts: list[int]

    @property
    def mean(self) -> float:
        """The mean over the samples that have a number."""
        return self.values["mean"]

    @property
    def count(self) -> int:
        """How many samples have a number."""
        return int(self.values["count"])


def summarize(values: np.ndarray) -> Summary:
    """Returns the summary of a column of finite numbers and NaN."""
    known = values[~np.isnan(values)]
    edges = _edges(known)
    counts, _ = np.histogram(known, edges)
    return Summary(_described(known), edges.tolist(), counts.tolist())


def read_column(path: Path, name: str) -> np.ndarray:
    """Returns a metric's column from a Parquet file."""
    return pq.ParquetFile(path).read([name])[name].to_numpy()


def as_csv(summaries: Mapping[str, Summary]) -> str:
    """Returns the table that pandas' `describe().to_csv()` writes: a row per statistic, a column per metric."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["", *summaries])
    for name in STATISTICS:
        rows.writerow([name, *("" if np.isnan(s.values[name]) else s.values[name] for s in summaries.values())])
    return text.getvalue()


def _described(known: np.ndarray) -> dict[str, float]:
    if not known.size:
        return dict.fromkeys(STATISTICS, math.nan) | {"count": 0.0}
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = known.std(ddof=1) if known.size > 1 else math.nan
        quartiles = np.quantile(known, [0.25, 0.5, 0.75])
        numbers = (known.size, known.mean(), deviation, known.min(), *quartiles, known.max())
    return dict(zip(STATISTICS, map(float, numbers), strict=True))


def _edges(known: np.ndarray) -> np.ndarray:
    """Returns the borders of the bins, from the smallest value to the largest; around a single one, some room."""
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    edges = _spaced(low, high)
    if edges[0] < edges[1]:
        return edges
    room = max(0.5, 1e-6 * abs(low))
    return _spaced(low - room, high + room)


def _spaced(low: float, high: float) -> np.ndarray:
    return 2 * np.linspace(low / 2, high / 2, BINS + 1)  # by halves: the distance of two floats may be none
