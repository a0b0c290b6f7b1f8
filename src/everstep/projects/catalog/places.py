"""Where data is: a path of this machine or a URL of a store. Both can be read, written and hold versions.

Data in a store is fetched once into the cache, and uploaded when it is complete. Credentials come from the environment.
"""

import contextlib
import datetime
import errno
import hashlib
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TypeVar

import filelock

from everstep import storage
from everstep.checkpoint.remote import (
    OWN,
    Absent,
    Store,
    StoreError,
    brief,
    cache,
    checked,
    is_url,
    join,
    local_files,
    publish,
)
from everstep.errors import UsageError

Result = TypeVar("Result")

Write = Callable[[Path], None]
"""Writes to a path that does not exist yet."""

_TAKEN = (errno.ENOTEMPTY, errno.EEXIST)


class LocalPlace:
    """A file or folder of this machine.

    Attributes:
      shown: Its absolute path, for messages.
      name: Its last part.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shown, self.name = str(path), path.name

    def below(self, version: str) -> "LocalPlace":
        """Returns the place of a version: `<filepath>/<version>/<name>`."""
        return LocalPlace(self._path / version / self.name)

    def exists(self) -> bool:
        """Returns whether data exists here."""
        return self._path.exists()

    def fetched(self) -> Path | None:
        """Returns its path on this machine, None if it does not exist."""
        return self._path if self._path.exists() else None

    def write(self, make: Write) -> None:
        """Calls `make` to write content, which replaces the old one when it is complete."""
        storage.prepare_directory(self._path.parent)
        with storage.atomic_path(self._path) as temporary:
            make(temporary)
            _make_durable(temporary)

    def versions(self, marker: str) -> list[str]:
        """Returns the versions that are complete, oldest first."""
        return ordered(name for name in self._taken() if (self._path / name / self.name / marker).exists())

    def add(self, make: Write, version: str | None) -> str:
        """Calls `make` to write a version, and returns its name; it exists when it is complete.

        Raises:
          UsageError: The version exists, or the folder of versions is a file.
        """
        storage.prepare_directory(self._path)
        draft = self._path / f".everstep-{uuid.uuid4().hex[:12]}-version"
        draft.mkdir()
        try:
            make(draft / self.name)
            _make_durable(draft)
            return self._settle(draft, version)
        finally:
            shutil.rmtree(draft, ignore_errors=True)

    def _settle(self, draft: Path, version: str | None) -> str:
        """Renames a draft to its version; of two processes that choose the same one, the second uses the next."""
        while True:
            chosen = version or following(self._taken())
            try:
                os.rename(draft, self._path / chosen)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if version:
                    raise UsageError(f"already exists in {self._path}", key="version", received=version) from None
                continue
            _sync(self._path)
            return chosen

    def _taken(self) -> list[str]:
        if not self._path.is_dir():
            return []
        return [entry.name for entry in self._path.iterdir() if not entry.name.startswith(".")]


def _make_durable(path: Path) -> None:
    """Makes sure that files have reached the disk before they get their names."""
    for entry in [*(path.rglob("*") if path.is_dir() else ()), path]:
        _sync(entry)


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every platform can open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# -- stores ----------------------------------------------------------------------------------------------------------

_CLAIMS = f"{OWN}/versions"


class StorePlace:
    """A file or folder in a store; see `LocalPlace`.

    Attributes:
      shown: Its URL.
      name: Its last part.
    """

    def __init__(self, url: str) -> None:
        self.shown = checked(url, "filepath")
        self.name = self.shown.rpartition("/")[2]

    def below(self, version: str) -> "StorePlace":
        """Returns the place of a version: `<filepath>/<version>/<name>`."""
        return StorePlace(join(self.shown, version, self.name))

    def exists(self) -> bool:
        """Returns whether data exists there; fetches nothing.

        Raises:
          UsageError: The store cannot be reached.
        """
        folder, _, name = self.shown.rpartition("/")
        return bool(_request(self.shown, lambda: Store(folder).info(name)))

    def fetched(self) -> Path | None:
        """Returns its path on this machine, once it is fetched; None if it does not exist.

        Raises:
          UsageError: The store cannot be reached, or a file does not arrive as it should.
        """
        if found := local_files(self.shown, "filepath"):
            return Path(next(iter(found.values())))
        inside = local_files(f"{self.shown}/**", "filepath")
        return _together(self.shown, inside) if inside else None

    def write(self, make: Callable[[Path], None]) -> None:
        """Calls `make` to write content on this machine, and uploads it."""
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            path = Path(folder, self.name)
            make(path)
            publish(path, self.shown)

    def versions(self, marker: str) -> list[str]:
        """Returns the versions that are complete, oldest first."""
        wanted = join(self.name, marker)
        found = {name.partition("/")[0] for name in self._listed() if _is_at(name.partition("/")[2], wanted)}
        return ordered(found)

    def add(self, make: Callable[[Path], None], version: str | None) -> str:
        """Uploads a new version, and returns its name."""
        taken = {name.partition("/")[0] for name in self._listed() if not name.startswith(".")}
        if version in taken:
            raise UsageError(f"already exists in {self.shown}", key="version", received=version)
        chosen = version or self._claimed(taken)
        self.below(chosen).write(make)
        return chosen

    def _claimed(self, taken: set[str]) -> str:
        """Returns a version that no other machine gets: a store creates an object of a name only once."""
        while True:
            chosen = following(taken)
            if _request(self.shown, lambda chosen=chosen: Store(self.shown).create(f"{_CLAIMS}/{chosen}", b"-")):  # type: ignore[misc]
                return chosen
            taken.add(chosen)

    def _listed(self) -> list[str]:
        return list(_request(self.shown, lambda: Store(self.shown).listing()) or ())


def _request(url: str, call: Callable[[], Result]) -> Result | None:
    """Calls a store; returns None for what does not exist.

    Raises:
      UsageError: The store does not answer.
    """
    try:
        return call()
    except Absent:
        return None
    except StoreError as error:
        raise UsageError(f"cannot be used: {brief(error)}", key="filepath", received=url) from error


def _is_at(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}/")


def _together(url: str, files: Mapping[str, str]) -> Path:
    """Returns a folder with the files in their places; the cache keeps each of them, and each version, apart."""
    listed = "\n".join(f"{name} {path}" for name, path in files.items())
    folder = cache.root() / "data" / cache.key(url) / f"folder-{hashlib.sha256(listed.encode()).hexdigest()[:12]}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with filelock.FileLock(folder.with_suffix(".lock")):
        if not folder.is_dir():
            with storage.atomic_path(folder) as temporary:
                for name, path in files.items():
                    _link_or_copy(Path(path), temporary / name.removeprefix(f"{url}/"))
    return folder


def _link_or_copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


Place = LocalPlace | StorePlace


def place(filepath: str, root: Path) -> Place:
    """Returns the place of a catalog's path: a URL, or a path that is relative to the project."""
    if is_url(filepath):
        return StorePlace(filepath)
    return LocalPlace(Path(os.path.normpath(root / Path(filepath).expanduser())))


# -- versions: times such as `2026-03-01T12.30.05.250Z`, or numbers --------------------------------------------------

_NAME = re.compile(r"[0-9A-Za-z][\w.+-]*")


def newest(names: Iterable[str]) -> str | None:
    """Returns the newest of some versions: the highest number, or the latest time; a time is newer than a number."""
    return max(names, key=_rank, default=None)


def ordered(names: Iterable[str]) -> list[str]:
    """Returns versions from the oldest to the newest."""
    return sorted(names, key=_rank)


def following(taken: Collection[str]) -> str:
    """Returns a new version: the next number where all others are numbers, else the time, where that is not taken."""
    if taken and all(name.isdecimal() for name in taken):
        return str(max(map(int, taken)) + 1)
    while (name := _now()) in taken:
        continue
    return name


def checked_version(version: object) -> str:
    """Returns the name of a version that can be a folder's.

    Raises:
      UsageError: It cannot.
    """
    name = str(version)
    if not _NAME.fullmatch(name):
        reason = "must be a number or a name of letters, digits, . _ + -"
        raise UsageError(reason, key="version", received=name)
    return name


def _rank(name: str) -> tuple[bool, int, str]:
    return (False, int(name), name) if name.isdecimal() else (True, 0, name)


def _now() -> str:
    """Returns the time in UTC to a millisecond, without colons, which not every file system allows."""
    now = datetime.datetime.now(datetime.UTC)
    return f"{now:%Y-%m-%dT%H.%M.%S}.{now.microsecond // 1000:03d}Z"
