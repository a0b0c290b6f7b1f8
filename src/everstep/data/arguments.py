"""Converts numbers and paths that users pass, NumPy's included, to plain Python values, or refuses them."""

import operator
import os
from typing import Any

import numpy as np

from everstep.errors import UsageError


def whole_number(key: str, value: Any, least: int = 1, most: int | None = None) -> int:
    """Returns a whole number as an int; NumPy's integers and 3.0 are accepted.

    Args:
      key: The argument's name.
      value: What was passed.
      least: The smallest allowed number.
      most: The largest allowed number; None for no limit.

    Raises:
      UsageError: The value is not a whole number, or outside the limits.
    """
    number = _whole(value)
    if number is None or number < least or (most is not None and number > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"must be a whole number {limits}", key=key, received=value)
    return number


def plain_number(value: Any) -> Any:
    """Returns a NumPy number as a Python number; anything else unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def place(key: str, value: Any) -> str:
    """Returns a path or a URL as text.

    Raises:
      UsageError: The value is neither.
    """
    try:
        text = os.fspath(value)
    except TypeError:
        text = None
    if not isinstance(text, str):
        raise UsageError("expected a path or a URL", key=key, received=value)
    return text


def shown(value: Any) -> str:
    """Returns a value in one short line."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:59]}…"


def _whole(value: Any) -> int | None:
    value = plain_number(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    try:
        return None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        return None
