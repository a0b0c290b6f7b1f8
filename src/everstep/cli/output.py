"""Printing: aligned lines, and no start-up messages of backends in between."""

import contextlib
import functools
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from everstep import redaction
from everstep.startup_messages import held_back
from everstep.storage import json_text
from everstep.tracking import can_draw, value_text

_CLEAR_BELOW = "\x1b[J"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines whose columns line up; the last column may be of any length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def number(value: Any) -> str:
    """Returns a number in a form to read: 0.0812345, 1e-05, 1,234,567, NaN."""
    return value_text(value, 6) if isinstance(value, float) else str(value)


def print_last(text: str) -> None:
    """Prints a command's result, without secrets; a closed pipe (`… | head`) does not fail a run that is done."""
    try:
        print(redaction.text(text), flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains when it ends


def print_json(value: Any) -> None:
    """Prints a command's result as JSON for other programs, as `print_last` does."""
    print_last(json_text(value))


@contextlib.contextmanager
def quiet(loads_keras: bool = True) -> Iterator[None]:
    """Holds standard error back within the block, without the backends' start-up messages; see `held_back`.

    Args:
      loads_keras: Whether the block loads Keras, which a line on a terminal announces.
    """
    if loads_keras:
        _announce()
    with held_back():
        yield


@functools.cache
def _announce() -> None:
    """Prints once, on a terminal, why the next seconds are silent; in place of what a killed run's display has left."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error is closed, or there is none
        if "keras" not in sys.modules and sys.stderr.isatty():
            name = os.environ.get("KERAS_BACKEND", "")
            clear = _CLEAR_BELOW if can_draw(sys.stderr) else ""
            print(f"{clear}loading Keras{f', backend {name}' if name else ''}", file=sys.stderr)
