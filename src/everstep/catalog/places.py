"""Where data lies: a path of this machine, or a URL of a store; both can be read, written and hold versions."""

import contextlib
import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from everstep import storage
from everstep.catalog import versions
from everstep.catalog.store_place import StorePlace
from everstep.errors import UsageError
from everstep.remote import is_url

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
        """Returns where a version lies: `<filepath>/<version>/<name>`."""
        return LocalPlace(self._path / version / self.name)

    def exists(self) -> bool:
        """Tells whether something is there."""
        return self._path.exists()

    def fetched(self) -> Path | None:
        """Returns its path on this machine, None if nothing is there."""
        return self._path if self._path.exists() else None

    def write(self, make: Write) -> None:
        """Has content written, which takes the place of the old one when it is complete."""
        storage.prepare_directory(self._path.parent)
        with storage.atomic_path(self._path) as temporary:
            make(temporary)
            _make_durable(temporary)

    def versions(self, marker: str) -> list[str]:
        """Returns the versions that are complete, oldest first."""
        return versions.ordered(name for name in self._taken() if (self._path / name / self.name / marker).exists())

    def add(self, make: Write, version: str | None) -> str:
        """Has a version written, and returns its name; it is there when it is complete.

        Raises:
          UsageError: The version is there already, or a file is where the folder of versions should be.
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
        """Gives a draft its name; of two processes that want the same one, the second takes the next."""
        while True:
            chosen = version or versions.following(self._taken())
            try:
                os.rename(draft, self._path / chosen)
            except OSError as error:
                if error.errno not in _TAKEN:
                    raise
                if version:
                    raise UsageError(f"there is a version {version!r} already in {self._path}") from None
                continue
            _sync(self._path)
            return chosen

    def _taken(self) -> list[str]:
        if not self._path.is_dir():
            return []
        return [entry.name for entry in self._path.iterdir() if not entry.name.startswith(".")]


Place = LocalPlace | StorePlace


def place(filepath: str, root: Path) -> Place:
    """Returns where a catalog's path leads: a URL, or a path that is relative to the project."""
    if is_url(filepath):
        return StorePlace(filepath)
    return LocalPlace(Path(os.path.normpath(root / Path(filepath).expanduser())))


def _make_durable(path: Path) -> None:
    """Makes sure that files have reached the disk before they get their names."""
    for entry in [*_below(path), path]:
        _sync(entry)


def _below(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from path.rglob("*")


def _sync(path: Path) -> None:
    with contextlib.suppress(OSError):  # not every platform opens folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
