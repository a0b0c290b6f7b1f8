"""How far a process had come when it died: a few bytes, overwritten as often as the disk allows.

`run.json` and the checkpoints say what was kept. What a killed process had computed beyond that is known to nobody
but its last heartbeat; the difference is the work that was lost.
"""

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from everstep import storage

_FILE = ".heartbeat"
_STEP_DIGITS, _TIME_DIGITS = 20, 20
_LONGEST_PAUSE = 1.0  # seconds between two writes
_LENGTH = _STEP_DIGITS + _TIME_DIGITS + 2  # a space between the two, a newline at the end


class Heartbeat:
    """Keeps the newest step, and when it was reached, in a small file of the run directory.

    Cheap enough to be called after every step: on a disk of this machine a write takes microseconds; on a slow one
    some are left out, so that writing takes at most one percent of the time. The record has a fixed width and is
    written in one go, so it is never half of one; it is not synced, because it has to survive the process, not the
    machine. A disk that cannot take it is no reason to stop training.

    Args:
      directory: The run directory.
      share: The part of the time that writing may take; 1 writes at every call.
      clock: Tells the time in seconds.
    """

    def __init__(
        self, directory: storage.PathLike, share: float = 0.01, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = Path(directory) / _FILE
        self._share, self._clock = share, clock
        self._next = 0.0
        self._descriptor: int | None = None
        self._unwritten: int | None = None

    def beat(self, step: int) -> None:
        """Notes that `step` is done."""
        self._unwritten = step
        now = self._clock()
        if now >= self._next:
            self._write(step)
            done = self._clock()
            self._next = done + min((done - now) * (1 / self._share - 1), _LONGEST_PAUSE)

    def close(self) -> None:
        """Writes the newest step, if it is not there yet, and closes the file."""
        if self._unwritten is not None:
            self._write(self._unwritten)
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, step: int) -> None:
        line = f"{step:0{_STEP_DIGITS}d} {time.time():0{_TIME_DIGITS}.3f}\n"
        with contextlib.suppress(OSError):
            if self._descriptor is None:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o666)
            os.pwrite(self._descriptor, line.encode(), 0)
            self._unwritten = None


def last_beat(directory: storage.PathLike) -> tuple[int, float] | None:
    """Returns the step of the last heartbeat in a run directory and its time, in seconds since 1970.

    None if there is none that can be read. It is the newest process's only once that has made its first call: before
    that, it is what the process before it had reached.
    """
    with contextlib.suppress(OSError, ValueError):
        line = (Path(directory) / _FILE).read_bytes()
        if len(line) == _LENGTH:
            step, seconds = line.split()
            return int(step), float(seconds)
    return None
