"""Printing: aligned lines, and no start-up messages of backends in between."""

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Returns rows as lines whose columns line up; the last column may be of any length."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def number(value: Any) -> str:
    """Returns a number in a form to read: 0.0812345, 1e-05, NaN."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def print_last(text: str) -> None:
    """Prints a command's result; a closed pipe (`… | head`) does not fail a run that is done."""
    try:
        print(text, flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # else Python complains when it ends


_STDERR = 2
# TensorFlow 2.21 writes a dozen lines while it loads, whatever `TF_CPP_MIN_LOG_LEVEL` is: it reads that too late.
# They come from C++ and go to file descriptor 2, past `sys.stderr`, so that is where they are caught.
_CHATTER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|"
    rb"[IW]\d{4} .*\.cc:\d+\]|"
    rb"E\d{4} .*failed call to cuInit"  # that is: there is no GPU
)


@contextlib.contextmanager
def quiet(loads_keras: bool = True) -> Iterator[None]:
    """Holds standard error back within the block; at its end writes all of it but the backends' start-up messages.

    If the block fails, everything is written, as it may be the reason. Keep the block short: output is delayed.
    With `TF_CPP_MIN_LOG_LEVEL` at 0 nothing is held back; at 1 it is: JAX sets that when it is imported.

    Args:
      loads_keras: Whether the block loads Keras, which a line on a terminal announces.
    """
    if loads_keras:
        _announce()
    wanted = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
    with contextlib.nullcontext() if wanted else _held_back():
        yield


@functools.cache
def _announce() -> None:
    """Prints once, on a terminal, why the next seconds are silent."""
    with contextlib.suppress(OSError, ValueError, AttributeError):  # standard error is closed, or there is none
        if "keras" not in sys.modules and sys.stderr.isatty():
            name = os.environ.get("KERAS_BACKEND", "")
            print(f"loading Keras, backend {name}" if name else "loading Keras", file=sys.stderr)


@contextlib.contextmanager
def _held_back() -> Iterator[None]:
    with tempfile.TemporaryFile() as held:
        _flush()
        original = os.dup(_STDERR)
        os.dup2(held.fileno(), _STDERR)
        dropped = None
        try:
            yield
            dropped = _CHATTER
        finally:
            _flush()
            os.dup2(original, _STDERR)
            os.close(original)
            held.seek(0)
            with open(_STDERR, "wb", closefd=False) as out:
                out.writelines(line for line in held if not (dropped and dropped.match(line)))


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
