"""Which process this is, so that another one can tell later whether it is gone.

A number alone tells little: it is given again, and each container counts from 1. So beside it stand the machine's
boot, the namespace that counts, and when the process began. Where one of them is not known nothing is concluded.
"""

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_PROC = Path("/proc")
_WHERE = ("host", "boot", "namespace")
_START = 19  # of what stands behind the name in `stat`: the kernel's field 22


def identity(pid: int | None = None) -> dict[str, Any]:
    """Returns what tells a process from all others; texts are empty where the system does not tell.

    Args:
      pid: One of this machine's processes; None: this one.
    """
    number = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "pid": number, **_where(), "start": _start(number)}


def is_gone(other: Mapping[str, Any]) -> bool:
    """Returns whether a process has surely ended; False also where that cannot be told from here."""
    here = {"host": socket.gethostname(), **_where()}
    if not other.get("start") or any(not here[key] or other.get(key) != here[key] for key in _WHERE):
        return False
    try:
        return _start(int(other["pid"])) != other["start"]
    except (KeyError, TypeError, ValueError):
        return False


def is_this(other: Mapping[str, Any]) -> bool:
    """Returns whether it is this process, without a doubt."""
    me = identity()
    return all(me.values()) and all(other.get(key) == value for key, value in me.items())


def _where() -> dict[str, str]:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "namespace": os.readlink(_PROC / "self/ns/pid")}
    except OSError:
        return {"boot": "", "namespace": ""}


def _start(pid: int) -> str:
    """Returns when a process began, in the kernel's ticks; empty if there is none, or none that runs."""
    try:
        state, *rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else rest[_START - 1]
