"""What can go wrong, in a person's words.

`UsageError` is bad input: the command line prints its text in one line and exits with 2, and nothing is left
behind. `TrainingError` is a run that had started and failed: exit code 1, and what the run had is kept.
A message says what was wrong, the value received, and what to do.
"""

import difflib
import os
import re
import sysconfig
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


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


def plain_text(error: BaseException) -> str:
    """Returns what an exception says, in one line and without the colours that Keras gives to shapes and layers."""
    return " ".join(_COLOUR.sub("", str(error)).split())


def wants_traceback() -> bool:
    """Whether errors show where in the libraries they come from: `EVERSTEP_TRACEBACK=1`."""
    return os.environ.get("EVERSTEP_TRACEBACK", "") not in ("", "0")


def own_frames(error: BaseException, below: str = "") -> list[traceback.FrameSummary]:
    """Returns the frames of a traceback that are neither everstep's, nor a library's, nor Python's.

    Args:
      error: The error.
      below: Those after the first frame of this file alone.
    """
    paths = sysconfig.get_paths()
    others = [Path(__file__).parent, *(Path(paths[name]) for name in ("stdlib", "purelib", "platlib"))]
    frames = list(traceback.extract_tb(error.__traceback__))
    first = next((index for index, frame in enumerate(frames) if frame.filename == below), 0)
    return [frame for frame in frames[first:] if not frame.filename.startswith("<") and not _is_below(frame, others)]


def _is_below(frame: traceback.FrameSummary, folders: Sequence[Path]) -> bool:
    path = Path(frame.filename).resolve()
    return any(path.is_relative_to(folder.resolve()) for folder in folders) or "site-packages" in path.parts
