"""One process per run directory, and its heartbeat.

The lock is the kernel's (`flock`, through the package filelock): it is released when the process that holds it dies,
in whatever way, and neither programs nor forks started by the process can keep it. So there is no stale lock, and
nothing to clean up after a kill. The record beside it tells people which process holds the lock.

`run.json` and the checkpoints tell what was kept. What a killed process had computed beyond that, only its last
heartbeat tells; the difference is the work that was lost.
"""

import contextlib
import datetime
import errno
import logging
import os
import shlex
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock

from everstep import liveness, redaction, storage
from everstep.errors import UsageError

logger = logging.getLogger(__name__)

_LOCK, _HOLDER = ".lock", ".lock.json"
_WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}
_SECONDS_TO_SIGN = 0.5

_HEARTBEAT = ".heartbeat"
_STEP_DIGITS, _TIME_DIGITS = 20, 20
_LONGEST_PAUSE = 1.0  # seconds between two heartbeats
_LENGTH = _STEP_DIGITS + _TIME_DIGITS + 2  # a space between the two, a newline at the end


class RunLock:
    """Holds a run directory for this process, and records its last step.

    Example:
      with RunLock(model_dir) as lock:
          ...
          lock.beat(step)

    On a file system without locks the run continues with a warning: a second process is not kept out there.

    Args:
      directory: The run directory; it should exist.
    """

    def __init__(self, directory: storage.PathLike) -> None:
        self.directory = Path(directory)
        self._heartbeat = Heartbeat(self.directory)
        # Any thread may release it; no soft lock, which would outlive the process.
        self._lock = filelock.FileLock(self.directory / _LOCK, thread_local=False, fallback_to_soft=False)

    def acquire(self) -> None:
        """Takes the lock, without waiting for it.

        Raises:
          UsageError: Another process trains here, or the directory cannot be written to.
        """
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(
                f"{str(self.directory)!r} is being trained by {_holder(self.directory)}",
                remedy="wait for it, or use another directory",
            ) from None
        except OSError as error:
            if error.errno not in _WITHOUT_LOCKS:
                raise UsageError(f"cannot lock the run directory {str(self.directory)!r}: {error.strerror}") from error
            logger.warning(
                "the file system of %r has no locks: make sure that only one process trains there", str(self.directory)
            )
        with contextlib.suppress(OSError):
            storage.write_json(self.directory / _HOLDER, _this_process())

    def release(self) -> None:
        """Releases the lock; harmless if it is not held."""
        self._heartbeat.close()
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                (self.directory / _HOLDER).unlink(missing_ok=True)
            self._lock.release()

    def beat(self, step: int) -> None:
        """Records that `step` is done, where `last_beat` finds it even after a kill."""
        self._heartbeat.beat(step)

    def __enter__(self) -> "RunLock":
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class NoLock(contextlib.nullcontext[None]):
    """For a directory that no other process knows: no lock, no heartbeat."""

    def beat(self, step: int) -> None:
        """Writes no heartbeat: nobody would read it."""


class Heartbeat:
    """Writes the newest step, and when it was reached, to a small file of the run directory.

    Cheap enough to be called after every step: on a local disk a write takes microseconds; on a slow one some are
    skipped, so that writing takes at most one percent of the time. The record has a fixed width and is written in one
    call, so it is never incomplete; it is not synced, because it has to survive the process, not the machine. A failed
    write does not stop training.

    Args:
      directory: The run directory.
      share: The share of the time that writing may take; 1 writes at every call.
      clock: Returns the time in seconds.
    """

    def __init__(
        self, directory: storage.PathLike, share: float = 0.01, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._path = Path(directory) / _HEARTBEAT
        self._share, self._clock = share, clock
        self._next = 0.0
        self._descriptor: int | None = None
        self._unwritten: int | None = None

    def beat(self, step: int) -> None:
        """Records that `step` is done."""
        self._unwritten = step
        now = self._clock()
        if now >= self._next:
            self._write(step)
            done = self._clock()
            self._next = done + min((done - now) * (1 / self._share - 1), _LONGEST_PAUSE)

    def close(self) -> None:
        """Writes the newest step, if it is not written yet, and closes the file."""
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

    None if there is none. Until the newest process has written its first heartbeat, it is that of the process before.
    """
    with contextlib.suppress(OSError, ValueError):
        line = (Path(directory) / _HEARTBEAT).read_bytes()
        if len(line) == _LENGTH:
            step, seconds = line.split()
            return int(step), float(seconds)
    return None


def is_held(directory: storage.PathLike) -> bool:
    """Returns whether a process holds the lock of a directory, without disturbing it.

    The process that takes the lock writes a record beside it. Without a record, or with that of a dead process, the
    lock is free. If the recorded process may be alive, the lock itself is tried; the holder does not notice. The record
    of a process on another machine is trusted.
    """
    with contextlib.suppress(UsageError, OSError, KeyError, TypeError, ValueError):
        record = dict(storage.read_json(Path(directory) / _HOLDER))
        if record["host"] != socket.gethostname():
            return True
        return not liveness.is_gone(record, number_suffices=True) and liveness.is_locked(Path(directory) / _LOCK)
    return False


def _holder(directory: Path) -> str:
    """Describes the process that holds the lock; waits while the record is still that of a dead process."""
    deadline = time.monotonic() + _SECONDS_TO_SIGN
    while time.monotonic() < deadline:
        with contextlib.suppress(UsageError, KeyError, TypeError, ValueError):
            record = dict(storage.read_json(directory / _HOLDER))
            if not liveness.is_gone(record, number_suffices=True):
                return f"process {record['pid']} on host {record['host']} since {record['since']} ({record['command']})"
        time.sleep(0.05)
    return "another process"


def _this_process() -> dict[str, Any]:
    return {
        **liveness.process_identity(),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": redaction.text(shlex.join(sys.argv)),
    }
