"""Digests of content: the same bytes under the same names give the same fingerprint, on every machine.

Reading a hundred gigabytes at every start would be slow, so digests are kept in the cache, and used again as long as
size, times and inode of a file are unchanged. A file that changed within the last seconds is always read: its times
may not tell two changes apart.
"""

import contextlib
import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from everstep import storage
from everstep.checkpoint.remote import cache, sha256
from everstep.errors import UsageError

_SETTLED = 2.0
"""Seconds after which a file's times tell its changes; the coarsest file systems keep them in steps of two."""


class DataDigest(NamedTuple):
    """The content of a file or folder: a digest, and the number of bytes."""

    sha256: str
    bytes: int


def fingerprint(path: Path) -> DataDigest:
    """Returns the digest of a file's bytes; of a folder that of the names in it, in order, and of their contents."""
    known = _Known(path)
    if path.is_dir():
        found = _of_folder(path, known)
    else:
        found = known.content(path, "")
    known.keep()
    return found


def _of_folder(folder: Path, known: "_Known") -> DataDigest:
    digest, total = hashlib.sha256(), 0
    for name in sorted(_names(folder)):
        content = known.content(folder / name, name)
        digest.update(f"{len(name.encode())} {name} {content.bytes} {content.sha256}\n".encode())
        total += content.bytes
    return DataDigest(digest.hexdigest(), total)


def _names(folder: Path) -> Iterable[str]:
    """Yields the files in a folder, without drafts that a killed process left."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder)
        if path.is_file() and not any(storage.is_temporary(part) for part in name.parts):
            yield name.as_posix()


class _Known:
    """Digests of the files at a path, kept from earlier."""

    def __init__(self, path: Path) -> None:
        self._file = cache.root() / "fingerprints" / f"{cache.key(str(path.absolute()))}.json"
        self._before = self._read()
        self._now: dict[str, list[Any]] = {}

    def content(self, path: Path, name: str) -> DataDigest:
        """Returns the content of a file, read only where it may have changed."""
        signature = _signature(path)
        held = self._before.get(name)
        if isinstance(held, list) and held[:-1] == signature:
            digest = str(held[-1])
        else:
            digest = sha256(path)
        if _is_settled(path) and _signature(path) == signature:
            self._now[name] = [*signature, digest]
        return DataDigest(digest, signature[0])

    def keep(self) -> None:
        """Saves the digests; a cache that cannot be written to is ignored."""
        if self._now != self._before:
            with contextlib.suppress(OSError, UsageError):
                storage.prepare_directory(self._file.parent)
                storage.write_json(self._file, self._now)

    def _read(self) -> dict[str, Any]:
        with contextlib.suppress(UsageError):
            held = storage.read_json(self._file)
            return held if isinstance(held, dict) else {}
        return {}


def _signature(path: Path) -> list[int]:
    """Returns what changes when a file does; its change time cannot be set back by hand."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _is_settled(path: Path) -> bool:
    status = path.stat()
    return time.time() - max(status.st_mtime, status.st_ctime) > _SETTLED
