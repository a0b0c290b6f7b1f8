"""Data files in a store: fetched once, checked, and read from this machine's disk after that."""

import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import filelock

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.remote import cache
from everstep.remote.checksums import fingerprint, is_confirmed, version
from everstep.remote.failures import Absent, StoreError, brief
from everstep.remote.transfer import Store
from everstep.remote.urls import checked, join, known_schemes, scheme_of

_MAGIC = "*?["
_SAY_EVERY = 10.0
_PLAIN = re.compile(r"[0-9a-f]{32}")


def is_known(pattern: str) -> bool:
    """Returns whether a path or glob is a URL of a store that can be read."""
    return bool(scheme_of(pattern)) and scheme_of(pattern) in known_schemes()


def local_files(pattern: str, key: str = "input_path") -> dict[str, str]:
    """Fetches the files that a URL or a glob names; returns their paths on this machine, by URL, in order.

    What was fetched before, and has not changed, is not fetched again; processes that want the same file wait for
    each other.

    Example:
      local_files("gs://bucket/data/train-*.tfrec")

    Args:
      pattern: A URL, or a glob in a URL.
      key: Where it comes from, for messages.

    Returns:
      Nothing if nothing matches.

    Raises:
      UsageError: The store cannot be reached, or a file does not arrive as it should.
    """
    url = checked(pattern, key)
    try:
        found = _found(url)
        return _fetched(found) if found else {}
    except StoreError as error:
        raise UsageError(f"{key}: {pattern!r} cannot be read: {brief(error)}") from error


def stored_names(url: str, key: str = "input_path") -> list[str]:
    """Returns the names of the objects that lie directly in a folder of a store; none if there is no such folder.

    Raises:
      UsageError: The store cannot be reached.
    """
    place = checked(url, key)
    try:
        return sorted(Store(place).matching("*"))
    except StoreError as error:
        raise UsageError(f"{key}: {url!r} cannot be read: {brief(error)}") from error


def _found(url: str) -> dict[str, Mapping[str, Any]]:
    """Returns what the store says of each file that matches, by URL, in the order of the URLs."""
    folder, _, name = url.rpartition("/")
    while any(letter in folder for letter in _MAGIC):
        folder, _, part = folder.rpartition("/")
        name = f"{part}/{name}"
    store = Store(folder)
    try:
        found = store.matching(name) if any(letter in name for letter in _MAGIC) else {name: store.info(name)}
    except Absent:
        return {}
    files = {one: info for one, info in found.items() if info.get("type") != "directory"}
    return {join(folder, one): files[one] for one in sorted(files)}


def _fetched(found: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    paths = {url: _place(url, info) for url, info in found.items()}
    missing = {url: path for url, path in paths.items() if not path.exists()}
    if missing:
        total = sum(int(found[url].get("size") or 0) for url in missing)
        progress = _Progress(len(missing), total)
        store = Store(next(iter(missing)).rpartition("/")[0])
        store.each(lambda url: _fetch(url, found[url], paths[url], progress), missing)
        progress.done()
    return {url: str(path) for url, path in paths.items()}


def _place(url: str, info: Mapping[str, Any]) -> Path:
    """Returns where a file is kept: another version of it has another place."""
    told = f"{info.get('size')} {version(info)}"
    return (
        cache.root() / "data" / cache.key(url) / hashlib.sha256(told.encode()).hexdigest()[:12] / url.rpartition("/")[2]
    )


def _fetch(url: str, info: Mapping[str, Any], target: Path, progress: "_Progress") -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_name(".lock")):
        if not target.exists():
            folder, _, name = url.rpartition("/")
            with storage.atomic_path(target) as arriving:  # a file that has the name counts, whoever dies meanwhile
                Store(folder).get(name, arriving)
                _check(url, info, arriving)
    progress.add(int(info.get("size") or 0))


def _check(url: str, info: Mapping[str, Any], arriving: Path) -> None:
    """Compares a file with what the store says of it: its size, and its checksum where it tells one.

    An ETag is that of the content for most objects, not for encrypted ones: where it differs, what arrives a second
    time decides.
    """
    has = fingerprint(arriving)
    is_wrong = info.get("size") not in (None, has.size) or (bool(info.get("md5Hash")) and not is_confirmed(info, has))
    if not is_wrong and _PLAIN.fullmatch(str(info.get("ETag", "")).strip('"')) and not is_confirmed(info, has):
        folder, _, name = url.rpartition("/")
        Store(folder).get(name, arriving)
        is_wrong = fingerprint(arriving) != has
    if is_wrong:
        raise StoreError(f"{url} did not arrive as the store has it")


class _Progress:
    """Tells a person, now and then, how much has arrived."""

    def __init__(self, count: int, total: int) -> None:
        self._count, self._total = count, total
        self._files = self._bytes = 0
        self._said = time.monotonic()
        _say(f"fetching {count} data files, {_size(total)}")

    def add(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        if time.monotonic() - self._said >= _SAY_EVERY:
            self._said = time.monotonic()
            _say(f"fetched {self._files} of {self._count} data files, {_size(self._bytes)} of {_size(self._total)}")

    def done(self) -> None:
        _say(f"fetched {self._count} data files; they are kept in {cache.root() / 'data'}")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _say(line: str) -> None:
    with contextlib.suppress(OSError):
        print(redaction.text(line), file=sys.stderr, flush=True)
