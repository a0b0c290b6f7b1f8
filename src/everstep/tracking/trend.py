"""A trend in one line: eight heights of a block, one for each point."""

import math
from collections.abc import Sequence

from everstep.tracking.painting import Line, Style, line_of

_HEIGHTS = "▁▂▃▄▅▆▇█"
_NEWEST = 16


def trend_line(values: Sequence[float], plain: bool) -> Line:
    """Returns the newest values as blocks; those that are not finite as `×`. Empty where there is nothing to compare.

    Args:
      values: Oldest first.
      plain: Whether only ASCII can be shown: then there is none.
    """
    newest = list(values)[-_NEWEST:]
    finite = [value for value in newest if math.isfinite(value)]
    if plain or len(newest) < 2 or not finite:
        return line_of()
    low, high = min(finite), max(finite)
    return line_of(("".join(_height(value, low, high) for value in newest), Style.TREND))


def _height(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "×"
    spread = high / 2 - low / 2  # halves: the whole may be more than a float holds
    share = (value / 2 - low / 2) / spread if spread > 0 else 0.0
    return _HEIGHTS[min(len(_HEIGHTS) - 1, int(share * len(_HEIGHTS)))]
