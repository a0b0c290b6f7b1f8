"""Whether somebody is at work in a directory that a `RunLock` guards; found out without getting in anybody's way."""

import contextlib
import os
import socket
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError

try:
    import fcntl
except ImportError:  # not on every platform
    fcntl = None  # type: ignore[assignment]


def is_held(directory: storage.PathLike) -> bool:
    """Tells whether a process holds the lock of a directory.

    Whoever takes the lock signs beside it. Nobody has signed: nobody holds it. The one who has signed is gone: it was
    killed. Only where a process of that number lives is the lock itself tried, for the number may be a new process's;
    and it is tried in a way that somebody who holds it does not notice. Of a process on another machine only its
    signature is known, and that counts.
    """
    with contextlib.suppress(UsageError, OSError, KeyError, TypeError, ValueError):
        holder = storage.read_json(Path(directory) / ".lock.json")
        if holder["host"] != socket.gethostname():
            return True
        return _lives(int(holder["pid"])) and _is_locked(Path(directory) / ".lock")
    return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
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
