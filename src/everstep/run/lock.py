"""One process per run directory.

The lock is the kernel's (`flock`, through the package filelock): it goes with the process that holds it, whichever
way that dies, and neither programs nor forks that the process starts can keep it. So there is no stale lock, and
nothing to clean up after a kill. The record beside it says who holds the lock, for people."""

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
    """Holds a run directory for this process, and records its last step.

    Example:
      with RunLock(model_dir) as lock:
          ...
          lock.beat(step)

    On a file system without locks there is a warning, and the run continues: there nothing keeps a second process out.

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
        """Records that `step` is done, where `heartbeat.last_beat` finds it even after a kill."""
        self._heartbeat.beat(step)

    def __enter__(self) -> "RunLock":
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


def is_held(directory: storage.PathLike) -> bool:
    """Returns whether a process holds the lock of a directory, without disturbing it.

    Whoever takes the lock writes a record beside it. Without a record, or with that of a dead process, nobody holds it.
    Where a process with the recorded number lives, the lock itself is tried, for the number may have been reused; the
    holder does not notice. The record of a process on another machine counts as it is.
    """
    with contextlib.suppress(UsageError, OSError, KeyError, TypeError, ValueError):
        record = storage.read_json(Path(directory) / _HOLDER)
        if record["host"] != socket.gethostname():
            return True
        return _is_alive(int(record["pid"])) and _is_locked(Path(directory) / _LOCK)
    return False


def _holder(directory: Path) -> str:
    """Returns who holds the lock, as text; the record of a dead process has not been replaced yet."""
    deadline = time.monotonic() + _SECONDS_TO_SIGN
    while time.monotonic() < deadline:
        with contextlib.suppress(UsageError, KeyError, TypeError, ValueError):
            record = storage.read_json(directory / _HOLDER)
            if record["host"] != socket.gethostname() or _is_alive(int(record["pid"])):
                return f"process {record['pid']} on host {record['host']} since {record['since']} ({record['command']})"
        time.sleep(0.05)
    return "another process"


def _this_process() -> dict[str, Any]:
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": redaction.text(shlex.join(sys.argv)),
    }


try:
    import fcntl
except ImportError:  # not on every platform
    fcntl = None  # type: ignore[assignment]


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # somebody else's process
        return True
    return True


def _is_locked(path: Path) -> bool:
    if fcntl is None:
        return True
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)  # and with it goes what was just taken
    return False
