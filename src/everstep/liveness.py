"""Is the other one still alive? Locks, leases, gangs, sweeps and supervisors all ask here.

There are three ways to know, the surest first. Each is used where those before it cannot see the other one.

1. The kernel. A lock on a file is free when every process that holds it is dead, in whatever way: `try_lock`,
   `wait_for_lock`, `is_locked`. The lock of a run directory is one, too (`run/lock.py`, through the package filelock,
   with which forks do not keep it), and so are those of the trials of a sweep, which a worker shares with its trial.
2. The table of processes. A number alone is not enough, so a record names a process by its identity:
   `process_identity`, `is_gone`, `is_this_process`. For a parent and its children: `is_orphaned`, `is_stopped`,
   `is_group_alive`.
3. Silence. Between machines, whoever is alive says so at intervals: `SignsOfLife` listens to a gang, or watches the
   lease of a run in a store. It measures silence on its own clock, because clocks of machines differ and jump. Only who
   cannot wait compares times that others have written: `was_recent`. A process that is frozen for long looks dead from
   elsewhere, so it must ask whether it still owns a thing before it writes to it, as leases do.
"""

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Hashable, Mapping
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on every platform
    fcntl = None  # type: ignore[assignment]

# -- locks of the kernel -----------------------------------------------------------------------------------------------


def try_lock(path: Path) -> int | None:
    """Takes the lock on a file, which is created if needed, without waiting for it.

    Returns:
      A descriptor, or None if another process holds the lock. The lock is held until the descriptor is closed here, and
      in every process that was started with it (`pass_fds` of `subprocess`), or until all of them are dead.
    """
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def wait_for_lock(path: Path) -> int:
    """Takes the lock on a file, as `try_lock` does, but waits until it is free."""
    descriptor = _open(path)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def is_locked(path: Path) -> bool:
    """Returns whether a process holds the lock on a file; the holder does not notice. True if that cannot be known."""
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
        os.close(descriptor)  # releases what was just taken
    return False


def _open(path: Path) -> int:
    if fcntl is None:
        raise OSError(errno.ENOSYS, "this platform has no locks that end with a process", str(path))
    return os.open(path, os.O_RDWR | os.O_CREAT, 0o666)


# -- the table of processes --------------------------------------------------------------------------------------------

_PROC = Path("/proc")
_STATE, _START = 0, 19  # fields 3 and 22 of `stat`, where the list begins after the command's name


def process_identity(pid: int | None = None) -> dict[str, Any]:
    """Returns what identifies a process; values that the system does not provide are empty.

    The number is not enough: it is reused, and each container counts from 1. So the identity also has the machine's
    boot, the process namespace, and the start time.

    Args:
      pid: A process of this machine; None for this process.
    """
    number = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "pid": number, **_boot_and_namespace(), "start": _start(number)}


def is_gone(other: Mapping[str, Any], number_suffices: bool = False) -> bool:
    """Returns whether a process has certainly ended; False if that cannot be known here.

    Args:
      other: Its identity. If a value is missing in it, or unknown here, nothing is concluded.
      number_suffices: Whether then to conclude from the host and the number alone. For a record beside a lock, since
        the lock itself has the last word.
    """
    if other.get("host") != socket.gethostname():
        return False
    here = _boot_and_namespace()
    try:
        number = int(other["pid"])
        if not other.get("start") or not all(here.values()) or not all(map(other.get, here)):
            return number_suffices and not _is_running(number)
        return all(other[key] == value for key, value in here.items()) and _start(number) != other["start"]
    except (KeyError, TypeError, ValueError):
        return False


def is_this_process(other: Mapping[str, Any]) -> bool:
    """Returns whether an identity is certainly that of this process."""
    me = process_identity()
    return all(me.values()) and all(other.get(key) == value for key, value in me.items())


def is_orphaned(parent: int) -> bool:
    """Returns whether the process that started this one, of number `parent`, is gone."""
    return os.getppid() != parent


def is_stopped(pid: int) -> bool:
    """Returns whether a process is stopped by a signal, as by SIGSTOP."""
    return (_stat(pid) or [""])[_STATE] in ("T", "t")


def is_group_alive(leader: int) -> bool:
    """Returns whether the process group that a child of this process began has processes left, itself included."""
    with contextlib.suppress(OSError):
        os.waitpid(-leader, os.WNOHANG)  # as process 1 of a container we inherit the orphans
    try:
        os.killpg(leader, 0)
    except OSError:
        return False
    return True


def _is_running(pid: int) -> bool:
    """Whether a process of this machine has this number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # a process of another user
        return True
    return True


def _boot_and_namespace() -> dict[str, str]:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "namespace": os.readlink(_PROC / "self/ns/pid")}
    except OSError:
        return {"boot": "", "namespace": ""}


def _start(pid: int) -> str:
    """Returns when a process started, in clock ticks; empty if it is not running."""
    fields = _stat(pid)
    return fields[_START] if fields and fields[_STATE] not in ("Z", "X") else ""


def _stat(pid: int) -> list[str]:
    """Returns what the system reports about a process, without its number and name; empty if it reports nothing."""
    with contextlib.suppress(OSError, ValueError):
        return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()  # the name may contain anything
    return []


# -- silence -----------------------------------------------------------------------------------------------------------


class SignsOfLife:
    """When each of several others was last heard from, on the clock of this process.

    A sign of life is any value that differs from the last one, such as a number that grows. While this process stands
    still itself (stopped by a signal, on a machine that sleeps), it hears nobody: that time does not count as silence.

    Example:
      signs = SignsOfLife({1: "", 2: ""})
      while not signs.pause(2.0):
          signs.hear(1, …)
          if lost := signs.silent(40.0): …

    Any thread may call it.

    Args:
      last: What is known of each one now, by its name: a sign must differ from that.
      clock: Returns the time in seconds.
    """

    def __init__(self, last: Mapping[Any, Any], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._last: dict[Hashable, tuple[Any, float]] = {name: (sign, clock()) for name, sign in last.items()}

    def hear(self, name: Hashable, sign: Any) -> bool:
        """Notes what was read of one of them; returns whether that is a new sign of life."""
        with self._lock:
            is_new = bool(self._last[name][0] != sign)
            if is_new:
                self._last[name] = sign, self._clock()
            return is_new

    def silent(self, seconds: float) -> list[Any]:
        """Returns who has given no sign of life for longer than `seconds`."""
        with self._lock:
            now = self._clock()
            return [name for name, (_, heard) in self._last.items() if now - heard > seconds]

    def pause(self, seconds: float, wait: Callable[[float], Any] = time.sleep) -> Any:
        """Pauses between two looks; what it takes beyond three times as long, this process stood still.

        Args:
          seconds: How long to pause.
          wait: Waits for so many seconds, or less.

        Returns:
          What `wait` returns.
        """
        began = self._clock()
        returned = wait(seconds)
        took = self._clock() - began
        if took > 3 * seconds:
            with self._lock:
                self._last = {name: (sign, heard + took - seconds) for name, (sign, heard) in self._last.items()}
        return returned


def was_recent(written: float, within: float) -> bool:
    """Returns whether a time that another machine has written, in seconds since 1970, is at most so many seconds ago.

    Its clock may differ, so `within` must be long enough for that.
    """
    return time.time() - written <= within
