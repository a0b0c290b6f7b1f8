"""Names of versions: times such as `2026-03-01T12.30.05.250Z`, or numbers; which is newest, and what comes next."""

import datetime
import re
from collections.abc import Collection, Iterable

from everstep.errors import UsageError

_NAME = re.compile(r"[0-9A-Za-z][\w.+-]*")


def newest(names: Iterable[str]) -> str | None:
    """Returns the newest of some versions: the highest number, or the latest time; a time is newer than a number."""
    return max(names, key=_rank, default=None)


def ordered(names: Iterable[str]) -> list[str]:
    """Returns versions from the oldest to the newest."""
    return sorted(names, key=_rank)


def following(taken: Collection[str]) -> str:
    """Returns a new version: the next number where all others are numbers, else the time, which nobody has taken."""
    if taken and all(name.isdecimal() for name in taken):
        return str(max(map(int, taken)) + 1)
    while (name := _now()) in taken:
        continue
    return name


def checked(version: object) -> str:
    """Returns the name of a version that can be a folder's.

    Raises:
      UsageError: It cannot.
    """
    name = str(version)
    if not _NAME.fullmatch(name):
        raise UsageError(f"version: received {name!r}; a version is a number or a name of letters, digits, . _ + -")
    return name


def _rank(name: str) -> tuple[bool, int, str]:
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)


def _now() -> str:
    """Returns the time in UTC to a millisecond, without colons: not every file system takes them."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y-%m-%dT%H.%M.%S}.{now.microsecond // 1000:03d}Z"
