"""Single files and folders in a store: data that is fetched once, results that are published.

A store replaces a single object at once, a folder never. So when a folder is published, the files at its top level are
uploaded last, and among them the one that completes it (`saved_model.pb`, `run.json`) last of all; it is deleted first.
"""

import contextlib
import hashlib
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import filelock

from everstep import redaction, storage
from everstep.checkpoint import manifest
from everstep.checkpoint.remote import cache, urls
from everstep.checkpoint.remote.layout import OWN, completing_files
from everstep.checkpoint.remote.store import Absent, Store, StoreError, brief, fingerprint, is_confirmed, version
from everstep.checkpoint.remote.urls import checked, join, known_schemes, scheme_of
from everstep.errors import TrainingError, UsageError
from everstep.storage import PathLike, is_temporary

_MAGIC = "*?["
_SAY_EVERY = 10.0
_PLAIN = re.compile(r"[0-9a-f]{32}")


def is_known(pattern: str) -> bool:
    """Returns whether a path or glob is a URL of a store that can be read."""
    return bool(scheme_of(pattern)) and scheme_of(pattern) in known_schemes()


def local_files(pattern: str, key: str = "input_path") -> dict[str, str]:
    """Fetches the files that a URL or a glob names; returns their paths on this machine, by URL, in order.

    What was fetched before, and has not changed, is not fetched again; processes that fetch the same file wait for
    each other.

    Example:
      local_files("gs://bucket/data/train-*.tfrec")

    Args:
      pattern: A URL, or a glob in a URL.
      key: Where it comes from, for messages.

    Returns:
      Nothing if nothing matches.

    Raises:
      UsageError: The store cannot be reached, or a file arrives damaged.
    """
    url = checked(pattern, key)
    try:
        found = _found(url)
        return _fetched(found) if found else {}
    except StoreError as error:
        raise UsageError(f"cannot be read: {brief(error)}", key=key, received=pattern) from error


def stored_names(url: str, key: str = "input_path") -> list[str]:
    """Returns the names of the objects directly in a folder of a store; none if there is no such folder.

    Raises:
      UsageError: The store cannot be reached.
    """
    place = checked(url, key)
    try:
        return sorted(Store(place).matching("*"))
    except StoreError as error:
        raise UsageError(f"cannot be read: {brief(error)}", key=key, received=url) from error


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
    identity = f"{info.get('size')} {version(info)}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return cache.root() / "data" / cache.key(url) / digest / url.rpartition("/")[2]


def _fetch(url: str, info: Mapping[str, Any], target: Path, progress: "_Progress") -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_name(".lock")):
        if not target.exists():
            folder, _, name = url.rpartition("/")
            with storage.atomic_path(target) as arriving:  # a file with this name is complete, even after a kill
                Store(folder).get(name, arriving)
                _check(url, info, arriving)
    progress.add(int(info.get("size") or 0))


def _check(url: str, info: Mapping[str, Any], arriving: Path) -> None:
    """Compares a file with its size and checksum in the store.

    An ETag is a checksum of the content for most objects, not for encrypted ones: if it differs, a second download
    decides.
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
    """Prints now and then how much has arrived."""

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


_PROBE = ".everstep-probe"
_PAUSE = 1.0


def publish(source: PathLike, url: str) -> None:
    """Uploads a file or a folder and verifies each file; a store that fails is retried for a while.

    Args:
      source: A file, or a folder; hidden files of it stay here.
      url: Its own name in the store, not that of a folder to put it in. What a folder had there before is removed.

    Raises:
      UsageError: The URL is invalid, or there is nothing to upload.
      TrainingError: The store did not accept it.
    """
    path, place = Path(source), checked(url, "url")
    folder, _, name = place.rpartition("/")
    if path.is_dir():
        _patiently(place, lambda: _publish_folder(path, Store(place)))
    elif path.is_file():
        _patiently(place, lambda: Store(folder).put_whole(name, path))
    else:
        raise UsageError("there is no such file or folder to publish", key="source", received=str(path))


def require_writable(url: str, key: str) -> None:
    """Writes a small object and removes it, so that publishing does not fail after hours of training.

    Raises:
      UsageError: The store cannot be reached or written to.
    """
    store = Store(url)
    try:
        store.put_bytes(_PROBE, b"")
        store.delete([_PROBE])
    except StoreError as error:
        raise UsageError(
            f"cannot be written to: {brief(error)}",
            key=key,
            received=url,
            remedy="check the URL and the credentials",
        ) from error


def _publish_folder(path: Path, store: Store) -> None:
    names = [entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_file()]
    shown = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    before = [name for name in store.listing() if not name.startswith(f"{OWN}/")]
    store.delete(name for name in reversed(_completing_files()) if name in before)
    for group in _in_order(shown):
        store.each(lambda name: store.put_whole(name, path / name), group)
    store.delete(name for name in before if name not in shown)


def _in_order(names: Iterable[str]) -> list[list[str]]:
    """Returns names in groups: those in folders, those on top, and then each one that completes the folder."""
    known = [name for name in names if not is_temporary(name)]
    last = [name for name in _completing_files() if name in known]
    rest = [name for name in known if name not in last]
    return [
        [name for name in rest if "/" in name],
        [name for name in rest if "/" not in name],
        *([one] for one in last),
    ]


def _completing_files() -> tuple[str, ...]:
    *progress, record = completing_files()
    return (manifest.NAME, *progress, "saved_model.pb", record)


def _patiently(url: str, call: Callable[[], object]) -> None:
    deadline = time.monotonic() + urls.upload_patience()
    while True:
        try:
            call()
            return
        except StoreError as error:
            if error.permanent or time.monotonic() >= deadline:
                remedy = "the same command tries again"
                raise TrainingError(f"{url} was not written: {brief(error)}", remedy=remedy) from error
            time.sleep(_PAUSE)
