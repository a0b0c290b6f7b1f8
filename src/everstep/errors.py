"""What can go wrong, in a person's words.

`UsageError` is bad input: the command line prints its text in one line and exits with 2, and nothing is left
behind. `TrainingError` is a run that had started and failed: exit code 1, and what the run had is kept.
A message says what was wrong, the value received, and what to do.
"""

import difflib
from collections.abc import Iterable
from typing import Any


class UsageError(ValueError):
    """The request cannot be carried out as written; nothing was done."""


class TrainingError(RuntimeError):
    """The run started and cannot go on."""


def missing_extra(package: str, extra: str, purpose: str) -> UsageError:
    """Returns the error for an optional package that is not installed.

    Example: `raise missing_extra("tensorflow", "tensorflow", "backend 'tensorflow'")`.
    """
    return UsageError(
        f"{purpose} needs the package {package!r}, which is not installed: pip install 'everstep[{extra}]'"
    )


def kind_of(value: Any) -> str:
    """Returns what kind of thing a value is, in a few words: `Sequential`, `None`, `tuple (Sequential, str)`."""
    if value is None:
        return "None"
    name = type(value).__name__
    if isinstance(value, tuple | list):
        inside = [type(item).__name__ for item in value[:4]]
        return f"{name} ({', '.join(inside)}{', …' if len(value) > len(inside) else ''})" if inside else f"empty {name}"
    return name


def nearest(name: str, known: Iterable[str]) -> str:
    """Returns a hint that names what the user may have meant, or all there is when that is little."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.55)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    if not names:
        return "none are known"
    listed = ", ".join(repr(n) for n in names[:12])
    return f"known: {listed}{', …' if len(names) > 12 else ''}"
