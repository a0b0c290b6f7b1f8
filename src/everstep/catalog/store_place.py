"""Data in a store: fetched once into the cache, uploaded when it is complete. Credentials come from the environment."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import filelock

from everstep import storage
from everstep.catalog import versions
from everstep.errors import UsageError
from everstep.remote import cache, local_files, publish
from everstep.remote.failures import Absent, StoreError, brief
from everstep.remote.layout import OWN
from everstep.remote.transfer import Store
from everstep.remote.urls import checked, join

Result = TypeVar("Result")

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
        """Returns where a version lies: `<filepath>/<version>/<name>`."""
        return StorePlace(join(self.shown, version, self.name))

    def exists(self) -> bool:
        """Tells whether something is there; fetches nothing.

        Raises:
          UsageError: The store cannot be reached.
        """
        folder, _, name = self.shown.rpartition("/")
        return bool(_asked(self.shown, lambda: Store(folder).info(name)))

    def fetched(self) -> Path | None:
        """Returns its path on this machine, once it is fetched; None if nothing is there.

        Raises:
          UsageError: The store cannot be reached, or a file does not arrive as it should.
        """
        if found := local_files(self.shown, "filepath"):
            return Path(next(iter(found.values())))
        inside = local_files(f"{self.shown}/**", "filepath")
        return _together(self.shown, inside) if inside else None

    def write(self, make: Callable[[Path], None]) -> None:
        """Has content written on this machine, and uploads it."""
        with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
            path = Path(folder, self.name)
            make(path)
            publish(path, self.shown)

    def versions(self, marker: str) -> list[str]:
        """Returns the versions that are complete, oldest first."""
        wanted = join(self.name, marker)
        found = {name.partition("/")[0] for name in self._listed() if _is_at(name.partition("/")[2], wanted)}
        return versions.ordered(found)

    def add(self, make: Callable[[Path], None], version: str | None) -> str:
        """Uploads a new version, and returns its name."""
        taken = {name.partition("/")[0] for name in self._listed() if not name.startswith(".")}
        if version in taken:
            raise UsageError(f"there is a version {version!r} already in {self.shown}")
        chosen = version or self._claimed(taken)
        self.below(chosen).write(make)
        return chosen

    def _claimed(self, taken: set[str]) -> str:
        """Returns a version that no other machine gets: a store makes an object of a name only once."""
        while True:
            chosen = versions.following(taken)
            if _asked(self.shown, lambda chosen=chosen: Store(self.shown).create(f"{_CLAIMS}/{chosen}", b"-")):  # type: ignore[misc]
                return chosen
            taken.add(chosen)

    def _listed(self) -> list[str]:
        return list(_asked(self.shown, lambda: Store(self.shown).listing()) or ())


def _asked(url: str, call: Callable[[], Result]) -> Result | None:
    """Asks a store; returns None for what is not there.

    Raises:
      UsageError: It does not answer.
    """
    try:
        return call()
    except Absent:
        return None
    except StoreError as error:
        raise UsageError(f"filepath: {url!r} cannot be used: {brief(error)}") from error


def _is_at(name: str, wanted: str) -> bool:
    return name == wanted or name.startswith(f"{wanted}/")


def _together(url: str, files: Mapping[str, str]) -> Path:
    """Returns a folder with the files in their places; the cache keeps each of them, and each version, apart."""
    told = "\n".join(f"{name} {path}" for name, path in files.items())
    folder = cache.root() / "data" / cache.key(url) / f"folder-{hashlib.sha256(told.encode()).hexdigest()[:12]}"
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
