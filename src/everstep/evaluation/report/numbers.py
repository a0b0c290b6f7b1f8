"""Numbers on their way into JSON, which knows neither NaN nor the infinities, and to people."""

import math
from typing import Any

import numpy as np


def finite(value: Any) -> float | None:
    """Returns a number as a float, None for one that is missing or not finite; texts such as "NaN" are read."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def shown(value: float | None, digits: int = 4) -> str:
    """Returns a number as people read it, as the page does: some digits, more where fewer would make 1 of 0.99996."""
    if value is None or math.isnan(value):
        return "–"
    if value == round(value) and abs(value) < 1e9:
        return f"{round(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(power)}"
    return f"{_rounded(value, digits):,.12g}"


def listed(values: np.ndarray) -> list[float | None]:
    """Returns an array of floats as a list, with None for what is not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def group_means(groups: np.ndarray, count: int, values: np.ndarray) -> list[float | None]:
    """Returns the mean of `values` in each group; NaN is left out, and an empty group has none.

    Args:
      groups: The group of each value, from 0; a negative one is in no group.
      count: How many groups there are.
      values: As many numbers.
    """
    known = ~np.isnan(values) & (groups >= 0)
    sums = np.bincount(groups[known], values[known], minlength=count)
    sizes = np.bincount(groups[known], minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return listed(sums / sizes)


def _rounded(value: float, digits: int) -> float:
    short = float(f"{value:.{digits}g}")
    return _rounded(value, digits + 1) if short == round(short) and abs(value) < 1000 and digits < 8 else short
