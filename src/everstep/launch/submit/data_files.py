"""A fingerprint of a folder of data: enough to see that it has changed, cheap enough to take at every submission."""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MAX_FILES = 200_000
"""Files beyond these are not looked at."""
MAX_BYTES = 256 * 2**20
"""So much content is read; of the rest names and sizes count."""

_CHUNK = 2**20


def fingerprint(folder: Path) -> dict[str, Any]:
    """Returns what is in a folder, or of which size a file is.

    Returns:
      `files` and `bytes`: how many, how large. `names`: sha256 over every path and size. `content`: sha256 over the
      content of the files in the order of their paths, as far as `MAX_BYTES` reach: `content_bytes`. `complete`:
      whether nothing was left out.
    """
    names, content = hashlib.sha256(), hashlib.sha256()
    files = total = read = 0
    for path in _files(folder):
        if files == MAX_FILES:
            return _told(files, total, names, content, read, complete=False)
        size = _size(path)
        names.update(b"%d " % size + os.fsencode(path.relative_to(folder)) + b"\0")
        files, total = files + 1, total + size
        read += _read(path, content, MAX_BYTES - read)
    return _told(files, total, names, content, read, complete=read == total)


def difference(before: dict[str, Any], now: dict[str, Any]) -> str | None:
    """Returns in words how a folder differs from its earlier fingerprint; None if it does not."""
    if before == now:
        return None
    if (before["files"], before["bytes"]) != (now["files"], now["bytes"]):
        return f"{_amount(before)} when it was submitted, {_amount(now)} now"
    return f"other {'names or sizes' if before['names'] != now['names'] else 'content'} than when it was submitted"


def _files(folder: Path) -> Iterator[Path]:
    if folder.is_file():
        yield folder
    for directory, names, files in os.walk(folder):
        names.sort()
        yield from (Path(directory, name) for name in sorted(files))


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:  # a dangling link
        return 0


def _read(path: Path, sha: Any, most: int) -> int:
    """Adds at most so many bytes of a file; returns how many."""
    read = 0
    try:
        with open(path, "rb") as file:
            while read < most and (data := file.read(min(_CHUNK, most - read))):
                sha.update(data)
                read += len(data)
    except OSError:
        sha.update(b"unreadable")
    return read


def _told(files: int, total: int, names: Any, content: Any, read: int, complete: bool) -> dict[str, Any]:
    digests = {"names": names.hexdigest(), "content": content.hexdigest()}
    return {"files": files, "bytes": total, **digests, "content_bytes": read, "complete": complete}


def _amount(told: dict[str, Any]) -> str:
    return f"{told['files']} files of {told['bytes']} bytes"
