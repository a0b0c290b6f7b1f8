"""Single files and folders in a store: data files are fetched once, results are published.

A store replaces a single object atomically, but not a folder. So when a folder is published, the files at its top level
are uploaded last, and among them the file that completes it (`saved_model.pb`, `run.json`) last of all. That file is
also the first one to be deleted.
"""

import contextlib
import hashlib
import re
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
from everstep.notebook import people_stream
from everstep.storage import PathLike, is_temporary

_WILDCARDS = "*?["
_PROGRESS_SECONDS = 10.0
_MD5 = re.compile(r"[0-9a-f]{32}")


def is_known(pattern: str) -> bool:
    """Returns whether a path or glob is a URL of a store that can be read."""
    return bool(scheme_of(pattern)) and scheme_of(pattern) in known_schemes()


def local_files(pattern: str, key: str = "input_path") -> dict[str, str]:
    """Fetches the files that a URL or a glob matches; returns their local paths by URL, in the order of the URLs.

    A file that was fetched before and has not changed is not fetched again. Processes that fetch the same file wait
    for each other.

    Example:
      local_files("gs://bucket/data/train-*.tfrec")

    Args:
      pattern: A URL, or a glob in a URL.
      key: The argument it was passed as, for errors.

    Returns:
      The paths; empty if nothing matches.

    Raises:
      UsageError: The store cannot be reached, or a file arrives damaged.
    """
    url = checked(pattern, key)
    try:
        found = _find(url)
        return _fetch_all(found) if found else {}
    except StoreError as error:
        raise UsageError(f"cannot be read: {brief(error)}", key=key, received=pattern) from error


def stored_names(url: str, key: str = "input_path") -> list[str]:
    """Returns the names of the objects directly in a folder of a store; empty if the folder does not exist.

    Raises:
      UsageError: The store cannot be reached.
    """
    place = checked(url, key)
    try:
        return sorted(Store(place).matching("*"))
    except StoreError as error:
        raise UsageError(f"cannot be read: {brief(error)}", key=key, received=url) from error


def _find(url: str) -> dict[str, Mapping[str, Any]]:
    """Returns what the store reports about each matching file, by URL, in the order of the URLs."""
    folder, _, name = url.rpartition("/")
    while any(letter in folder for letter in _WILDCARDS):
        folder, _, part = folder.rpartition("/")
        name = f"{part}/{name}"
    store = Store(folder)
    try:
        found = store.matching(name) if any(letter in name for letter in _WILDCARDS) else {name: store.info(name)}
    except Absent:
        return {}
    files = {one: info for one, info in found.items() if info.get("type") != "directory"}
    return {join(folder, one): files[one] for one in sorted(files)}


def _fetch_all(found: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    paths = {url: _cached_path(url, info) for url, info in found.items()}
    missing = {url: path for url, path in paths.items() if not path.exists()}
    if missing:
        total = sum(int(found[url].get("size") or 0) for url in missing)
        progress = _FetchProgress(len(missing), total)
        store = Store(next(iter(missing)).rpartition("/")[0])
        store.each(lambda url: _fetch(url, found[url], paths[url], progress), missing)
        progress.done()
    return {url: str(path) for url, path in paths.items()}


def _cached_path(url: str, info: Mapping[str, Any]) -> Path:
    """Returns where a file is kept locally; each version has its own path."""
    identity = f"{info.get('size')} {version(info)}"
    digest = hashlib.sha256(identity.encode()).hexdigest()[:12]
    return cache.root() / "data" / cache.key(url) / digest / url.rpartition("/")[2]


def _fetch(url: str, info: Mapping[str, Any], target: Path, progress: "_FetchProgress") -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(target.with_name(".lock")):
        if not target.exists():
            folder, _, name = url.rpartition("/")
            with storage.atomic_path(target) as temporary:  # a file with this name is complete, even after a kill
                Store(folder).get(name, temporary)
                _verify(url, info, temporary)
    progress.add(int(info.get("size") or 0))


def _verify(url: str, info: Mapping[str, Any], path: Path) -> None:
    """Compares a fetched file with its size and checksum in the store.

    For most objects the ETag is an MD5 of the content, but not for encrypted ones: if it differs, the file is
    downloaded again, and both downloads have to agree.
    """
    found = fingerprint(path)
    differs = info.get("size") not in (None, found.size) or (
        bool(info.get("md5Hash")) and not is_confirmed(info, found)
    )
    if not differs and _MD5.fullmatch(str(info.get("ETag", "")).strip('"')) and not is_confirmed(info, found):
        folder, _, name = url.rpartition("/")
        Store(folder).get(name, path)
        differs = fingerprint(path) != found
    if differs:
        raise StoreError(f"{url} did not arrive as the store has it")


class _FetchProgress:
    """Prints from time to time how much has been fetched."""

    def __init__(self, count: int, total: int) -> None:
        self._count, self._total = count, total
        self._files = self._bytes = 0
        self._printed = time.monotonic()
        _print(f"fetching {count} data files, {_size(total)}")

    def add(self, size: int) -> None:
        self._files += 1
        self._bytes += size
        if time.monotonic() - self._printed >= _PROGRESS_SECONDS:
            self._printed = time.monotonic()
            _print(f"fetched {self._files} of {self._count} data files, {_size(self._bytes)} of {_size(self._total)}")

    def done(self) -> None:
        _print(f"fetched {self._count} data files; they are kept in {cache.root() / 'data'}")


def _size(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _print(line: str) -> None:
    with contextlib.suppress(OSError):
        print(redaction.text(line), file=people_stream(), flush=True)


_PROBE = ".everstep-probe"
_RETRY_SECONDS = 1.0


def publish(source: PathLike, url: str, *, keep_others: bool = False) -> None:
    """Uploads a file or a folder and verifies each file; retries for a while if the store fails.

    Args:
      source: A file, or a folder; its hidden files are not uploaded.
      url: The URL that the file or folder gets, not that of its parent. Other files of an existing folder are removed.
      keep_others: Whether files and folders at the top level of an existing folder stay, if `source` has none of
        their names.

    Raises:
      UsageError: The URL is invalid, or there is nothing to upload.
      TrainingError: The store did not accept it.
    """
    path, place = Path(source), checked(url, "url")
    folder, _, name = place.rpartition("/")
    if path.is_dir():
        _retry(place, lambda: _publish_folder(path, Store(place), keep_others))
    elif path.is_file():
        _retry(place, lambda: Store(folder).put_whole(name, path))
    else:
        raise UsageError("there is no such file or folder to publish", key="source", received=str(path))


def require_writable(url: str, key: str) -> None:
    """Writes a small object and removes it: publishing should not fail after hours of training.

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


def _publish_folder(path: Path, store: Store, keep_others: bool) -> None:
    names = [entry.relative_to(path).as_posix() for entry in path.rglob("*") if entry.is_file()]
    shown = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    before = [name for name in store.listing() if not name.startswith(f"{OWN}/")]
    store.delete(name for name in reversed(_completing_files()) if name in before)
    for group in _in_order(shown):
        store.each(lambda name: store.put_whole(name, path / name), group)
    old = [name for name in before if name not in shown]
    store.delete(name for name in old if not keep_others or (path / name.partition("/")[0]).exists())


def _in_order(names: Iterable[str]) -> list[list[str]]:
    """Returns names in groups: files in folders, files at the top, and then each file that completes the folder."""
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


def _retry(url: str, call: Callable[[], object]) -> None:
    deadline = time.monotonic() + urls.upload_patience()
    while True:
        try:
            call()
            return
        except StoreError as error:
            if error.permanent or time.monotonic() >= deadline:
                raise TrainingError(
                    f"was not written: {brief(error)}", key=url, remedy="run the same command again"
                ) from error
            time.sleep(_RETRY_SECONDS)
