"""Regression: how far predictions are from their labels, and to which side."""

from typing import Any

import numpy as np
import pyarrow as pa

from everstep.evaluation.summary import summarize
from everstep.report.numbers import finite
from everstep.report.rows import floats


def residuals(table: pa.Table) -> dict[str, Any] | None:
    """Returns a histogram of prediction minus label, and what sums it up; None where no row has both."""
    labels, predicted = floats(table["label"]), floats(table["prediction"])
    known = np.isfinite(labels) & np.isfinite(predicted)
    if not known.any():
        return None
    distances = predicted[known] - labels[known]
    found = summarize(distances)
    return {
        "histogram": {"edges": found.edges, "counts": found.counts},
        "count": found.count,
        "bias": finite(found.mean),
        "mae": finite(np.abs(distances).mean()),
        "rmse": finite(np.sqrt((distances**2).mean())),
        "r2": _explained(labels[known], distances),
    }


def _explained(labels: np.ndarray, distances: np.ndarray) -> float | None:
    """Returns the share of the labels' variance that predictions explain; None where labels are all the same."""
    variance = float(((labels - labels.mean()) ** 2).sum())
    return finite(1 - float((distances**2).sum()) / variance) if variance else None
