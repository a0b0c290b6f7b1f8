"""Printing: aligned lines for people, JSON for programs."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines whose columns line up; the last column may be of any length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def number(value: Any) -> str:
    """Returns a number in a form to read: 0.0812345, 1e-05, NaN."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def json_text(value: Any) -> str:
    """Returns strict JSON: NaN and the infinities, which it cannot spell, become text."""
    return json.dumps(_spelled(value), indent=2, ensure_ascii=False, allow_nan=False)


def _spelled(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _spelled(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_spelled(item) for item in value]
    if hasattr(value, "tolist"):
        return _spelled(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
