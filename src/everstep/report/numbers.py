"""Numbers for JSON, which has neither NaN nor infinity, and for readers."""

import math
from typing import Any

import numpy as np


def finite(value: Any) -> float | None:
    """Returns a value as a float; None if it is missing or not finite. Texts such as "NaN" are parsed."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def shown(value: float | None, digits: int = 4) -> str:
    """Returns a number as the page shows it: rounded, with more digits where 0.99996 would become 1."""
    if value is None or math.isnan(value):
        return "–"
    if value == round(value) and abs(value) < 1e9:
        return f"{round(value):,}"
    if abs(value) >= 1e6 or abs(value) < 1e-4:
        mantissa, _, power = f"{value:.2e}".partition("e")
        return f"{mantissa}e{int(power)}"
    return f"{_rounded(value, digits):,.12g}"


def listed(values: np.ndarray) -> list[float | None]:
    """Returns an array of floats as a list, with None for values that are not finite."""
    return [value if math.isfinite(value) else None for value in values.tolist()]


def group_means(groups: np.ndarray, count: int, values: np.ndarray) -> list[float | None]:
    """Returns the mean of `values` in each group, without NaNs; None for an empty group.

    Args:
      groups: The group of each value, from 0; a negative number means no group.
      count: The number of groups.
      values: The values.
    """
    known = ~np.isnan(values) & (groups >= 0)
    sums = np.bincount(groups[known], values[known], minlength=count)
    sizes = np.bincount(groups[known], minlength=count)
    with np.errstate(invalid="ignore", divide="ignore"):
        return listed(sums / sizes)


def _rounded(value: float, digits: int) -> float:
    short = float(f"{value:.{digits}g}")
    return _rounded(value, digits + 1) if short == round(short) and abs(value) < 1000 and digits < 8 else short
