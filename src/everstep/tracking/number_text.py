"""Numbers as people read them: `12,400`, `26.1k samples/s`, `1.25 GB`, `42 %`, `0:03:12`."""

import math

_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_DIVISORS = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def count(number: int) -> str:
    """Returns a whole number: 12,400."""
    return f"{number:,}"


def rate_text(number: float, unit: str) -> str:
    """Returns a rate in three digits: `812 steps/s`, `26.1k samples/s`."""
    digits, prefix = _scaled(number)
    return f"{digits}{prefix} {unit}"


def bytes_text(number: float) -> str:
    """Returns a size in three digits: `1.25 GB`."""
    digits, prefix = _scaled(number)
    return f"{digits} {prefix}B"


def _scaled(number: float) -> tuple[str, str]:
    """Returns three digits of a number, and the prefix for its magnitude."""
    if not math.isfinite(number):
        return str(number), ""
    prefix = next((prefix for least, prefix in _UNITS if abs(number) >= least), "")
    scaled = number / _DIVISORS.get(prefix, 1.0)
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:,.{digits}f}", prefix


def percent(share: float, digits: int = 0) -> str:
    """Returns a share of 1: 42 %."""
    return f"{100 * share:.{digits}f} %"


def value_text(value: float, digits: int = 4) -> str:
    """Returns a metric's value in four digits, of a large one the whole number: 12,346; `nan` and `inf` by name."""
    text = f"{value:.{digits}g}"
    return f"{value:,.0f}" if "e+" in text and abs(value) < 1e15 else text


def clock_time(seconds: float) -> str:
    """Returns a span of time: `12 s` below a minute, then 0:03:12; days before it where there are any."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    days, rest = divmod(round(seconds), 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text
