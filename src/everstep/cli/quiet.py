"""Loading a backend: a line on a terminal says so, and its start-up messages are kept off the screen.

TensorFlow 2.21 writes a dozen lines while it loads, whatever `TF_CPP_MIN_LOG_LEVEL` says: it reads that too
late. They come from C++ and go to file descriptor 2, past `sys.stderr`, so that is where they are caught.
"""

import contextlib
import functools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from typing import IO

_STDERR = 2
_CHATTER = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog|"
    rb"[IW]\d{4} .*\.cc:\d+\]|"
    rb"E\d{4} .*failed call to cuInit"  # that is: there is no GPU
)


@contextlib.contextmanager
def quiet(loads_keras: bool = True) -> Iterator[None]:
    """Within the block standard error is held back; at its end all but the backends' chatter is written.

    If the block fails, all of it is: it may say why. Do nothing long in it: what is held comes late.
    With `TF_CPP_MIN_LOG_LEVEL` at 0 or 1 the user has asked for the chatter, and nothing is held back.

    Args:
      loads_keras: Whether the block loads Keras, so that somebody in front of a terminal is told what to wait for.
    """
    if loads_keras:
        _announce()
    wanted = os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") in ("0", "1")
    with contextlib.nullcontext() if wanted else _held_back():
        yield


@functools.cache
def _announce() -> None:
    """Says once, on a terminal, what takes the next seconds; in a log nobody waits for it."""
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
            _write(held, dropped)


def _write(held: IO[bytes], dropped: re.Pattern[bytes] | None) -> None:
    held.seek(0)
    with open(_STDERR, "wb", closefd=False) as out:
        out.writelines(line for line in held if not (dropped and dropped.match(line)))


def _flush() -> None:
    if sys.stderr is not None:
        sys.stderr.flush()
