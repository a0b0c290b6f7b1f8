"""Regression: how far predictions are from their labels, and to which side."""

from typing import Any

import numpy as np
import pyarrow as pa

from everstep.evaluation.summary import summarize
from everstep.report.numbers import finite
from everstep.report.rows import floats


def residuals(table: pa.Table) -> dict[str, Any] | None:
    """Returns a histogram of prediction minus label, and what sums it up; None where no row has a distance.

    Numbers may be so large that their distance or its square is none: what cannot be told is None.
    """
    labels, predicted = floats(table["label"]), floats(table["prediction"])
    with np.errstate(over="ignore", invalid="ignore"):
        distances = predicted - labels
        known = np.isfinite(distances)
        return _summed_up(labels[known], distances[known]) if known.any() else None


def _summed_up(labels: np.ndarray, distances: np.ndarray) -> dict[str, Any]:
    found = summarize(distances)
    return {
        "histogram": {"edges": found.edges, "counts": found.counts},
        "count": found.count,
        "bias": finite(found.mean),
        "mae": finite(np.abs(distances).mean()),
        "rmse": finite(np.sqrt((distances**2).mean())),
        "r2": _explained(labels, distances),
    }


def _explained(labels: np.ndarray, distances: np.ndarray) -> float | None:
    """Returns the share of the labels' variance that predictions explain; None where labels are all the same."""
    variance = float(((labels - labels.mean()) ** 2).sum())
    return finite(1 - float((distances**2).sum()) / variance) if variance else None
