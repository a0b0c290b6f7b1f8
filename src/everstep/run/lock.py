"""One process per run directory.

The lock is the kernel's (`flock`, through the package filelock): it goes with the process that holds it, whichever
way that dies, and neither programs nor forks that the process starts can keep it. So there is no stale lock, and
nothing to clean up after a kill. The record beside it says who holds the lock, for people; nothing depends on it.
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
from pathlib import Path
from typing import Any

import filelock

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.run.heartbeat import Heartbeat

logger = logging.getLogger(__name__)

_LOCK, _HOLDER = ".lock", ".lock.json"
_WITHOUT_LOCKS = {errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK}
_SECONDS_TO_SIGN = 0.5


class RunLock:
    """Holds a run directory for this process, and tells the world how far it is.

    Example:
      with RunLock(model_dir) as lock:
          ...
          lock.beat(step)

    A file system that has no locks is warned of, once, and the run goes on: there nothing keeps a second process out.

    Args:
      directory: The run directory; it should exist.
    """

    def __init__(self, directory: storage.PathLike) -> None:
        self.directory = Path(directory)
        self._heartbeat = Heartbeat(self.directory)
        # Any thread may let go of it; and without the kernel's locks there is none that would end with the process.
        self._lock = filelock.FileLock(self.directory / _LOCK, thread_local=False, fallback_to_soft=False)

    def acquire(self) -> None:
        """Takes the lock, without waiting for it.

        Raises:
          UsageError: Another process trains here, or the directory cannot be written to.
        """
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise UsageError(_refusal(self.directory)) from None
        except OSError as error:
            _without_lock(self.directory, error)
        with contextlib.suppress(OSError):
            storage.write_json(self.directory / _HOLDER, _this_process())

    def release(self) -> None:
        """Lets go of it; harmless if it is not held."""
        self._heartbeat.close()
        if self._lock.is_locked:
            with contextlib.suppress(OSError):
                (self.directory / _HOLDER).unlink(missing_ok=True)
            self._lock.release()

    def beat(self, step: int) -> None:
        """Notes that `step` is done, where `heartbeat.last_beat` finds it even after a kill."""
        self._heartbeat.beat(step)

    def __enter__(self) -> "RunLock":
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def _without_lock(directory: Path, error: OSError) -> None:
    """Goes on where the file system knows no locks; everything else is an error."""
    if error.errno not in _WITHOUT_LOCKS:
        raise UsageError(f"cannot lock the run directory {str(directory)!r}: {error.strerror}") from error
    logger.warning("the file system of %r has no locks: see to it that one process alone trains there", str(directory))


def _refusal(directory: Path) -> str:
    return f"{str(directory)!r} is being trained by {_holder(directory)}: wait for it, or name another directory"


def _holder(directory: Path) -> str:
    """Returns who holds the lock, in words; a record of somebody dead is one that has not been replaced yet."""
    deadline = time.monotonic() + _SECONDS_TO_SIGN
    while time.monotonic() < deadline:
        with contextlib.suppress(UsageError, KeyError, TypeError):
            record = storage.read_json(directory / _HOLDER)
            if not _is_dead(record):
                return f"process {record['pid']} on host {record['host']} since {record['since']} ({record['command']})"
        time.sleep(0.05)
    return "another process"


def _is_dead(record: dict[str, Any]) -> bool:
    """Tells whether a record's process is gone, as far as that can be known from this host."""
    if record["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(record["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, OverflowError):
        return False
    return False


def _this_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": redaction.text(shlex.join(sys.argv)),
    }
