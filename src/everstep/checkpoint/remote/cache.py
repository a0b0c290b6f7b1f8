"""Local copies of what a store has: where they are, and how a run is fetched and verified.

They are below `$EVERSTEP_CACHE_DIR`, by default `~/.cache/everstep`:

    runs/<digest of the URL>/        the working copy of a run
    runs/<digest>.copy.json          the id of the copy
    runs/<digest>.staging/           what is being uploaded or downloaded
    runs/<digest>.aside/             a copy that no longer matched the store
    views/<digest>/                  read-only copies
    data/<digest>/<version>/<name>   a data file
"""

import contextlib
import hashlib
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import manifest
from everstep.checkpoint.complete import CHECKPOINTS
from everstep.checkpoint.remote.layout import (
    INDEX,
    Index,
    Unit,
    local_unit,
    parsed,
    read_index,
    single_files,
    unit_paths,
)
from everstep.checkpoint.remote.store import Absent, Altered, Store, sha256
from everstep.errors import TrainingError, UsageError

logger = logging.getLogger(__name__)

VARIABLE = "EVERSTEP_CACHE_DIR"
"""The environment variable that sets the folder of all local copies."""


def root() -> Path:
    """Returns the folder of all local copies."""
    folder = os.environ.get(VARIABLE)
    return Path(folder).absolute() if folder else Path.home() / ".cache" / "everstep"


def key(url: str) -> str:
    """Returns the name of a URL's folder in the cache."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


class Copy:
    """The local working copy of a run.

    Args:
      url: The run in the store.

    Attributes:
      directory: The run directory on this machine; it may not exist.
      staging: A folder on the same file system for unfinished transfers; emptied at the start.
    """

    def __init__(self, url: str) -> None:
        folder = root() / "runs"
        storage.prepare_directory(folder)
        self.url, self.directory = url, folder / key(url)
        self.staging = folder / f"{key(url)}.staging"
        self._state = folder / f"{key(url)}.copy.json"
        storage.remove_directory(self.staging)
        self.staging.mkdir()

    @property
    def id(self) -> str:
        """Identifies this copy: the same as long as it is used, different on each machine."""
        with contextlib.suppress(UsageError, KeyError, TypeError):
            return str(storage.read_json(self._state)["copy"])
        return self._renew()

    def _renew(self) -> str:
        new = uuid.uuid4().hex
        storage.write_json(self._state, {"copy": new, "url": self.url})
        return new

    def close(self) -> None:
        """Removes unfinished uploads and downloads."""
        storage.remove_directory(self.staging)

    def set_aside(self, reason: str) -> None:
        """Moves the run directory aside, replacing an earlier one; the next copy has another id."""
        aside = self.directory.with_name(f"{self.directory.name}.aside")
        storage.remove_directory(aside)
        self.directory.rename(aside)
        self._renew()
        logger.warning("%s; the local copy was moved to %s", reason, aside)


class Contents:
    """What a store has of a run, listed once, at construction.

    Args:
      store: The store of the run.

    Attributes:
      names: What the store reports about every object, by name.
      index: The store's index; None if it has none.
      units: The complete units, by path.
      damaged: Paths of units whose manifest or files are not as they were written.

    Raises:
      StoreError: The store does not answer.
      TrainingError: The index is damaged.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.names: Mapping[str, Any] = store.listing()
        self.index: Index | None = read_index(store) if INDEX in self.names else None
        self.units: dict[str, Unit] = {}
        self.damaged: list[str] = []
        for path in unit_paths(self.names):
            self._read_manifest(path)

    @property
    def is_empty(self) -> bool:
        """Whether the store has nothing of a run."""
        return not self.units and not self.files()

    @property
    def checkpoints(self) -> list[Unit]:
        """The complete checkpoints, the newest first."""
        return sorted((u for u in self.units.values() if u.parent == CHECKPOINTS), key=lambda u: (-u.step, u.path))

    def files(self) -> list[str]:
        """Returns the run's files that are not in units."""
        found = single_files(self.names, [*self.units, *self.damaged])
        return [name for name in found if self.index is None or self.index.allowed(name)]

    def _read_manifest(self, path: str) -> None:
        try:
            unit = parsed(path, self.store.get_bytes(f"{path}/{manifest.NAME}"))
        except Absent:  # removed meanwhile
            return
        if unit is None:
            logger.warning("%s/%s is damaged: its manifest cannot be read; skipping it", self.store.url, path)
            self.damaged.append(path)
        else:
            self.units[path] = unit


def fetch_files(contents: Contents, directory: Path) -> None:
    """Fetches the files that are not in units; unchanged local ones are not fetched again.

    Raises:
      TrainingError: A file is not as it was uploaded.
      StoreError: A file cannot be fetched.
    """
    names = contents.files()
    lost = sorted(set(contents.index.files) - set(names)) if contents.index else []
    if lost:
        logger.warning("%s has lost %s: continuing without them", contents.store.url, ", ".join(lost[:5]))
    contents.store.each(lambda name: _fetch_file(contents, name, directory / name), names)


def _fetch_file(contents: Contents, name: str, target: Path) -> None:
    allowed = contents.index.allowed(name) if contents.index else []
    if target.is_file() and [target.stat().st_size, sha256(target)] in allowed:
        return
    try:
        contents.store.get(name, target, allowed)
    except Altered as error:
        raise TrainingError(str(error), remedy="restore it from a copy, or remove it to continue without it") from error
    except Absent:
        logger.debug("%s was removed meanwhile", name)


def fetch_unit(store: Store, unit: Unit, directory: Path, staging: Path) -> bool:
    """Fetches a unit, which appears when it is complete; returns whether it is undamaged.

    Args:
      store: The store of the run.
      unit: The unit to fetch.
      directory: The run directory.
      staging: Where the unit is assembled: on the same file system, and used by nothing else.

    Raises:
      StoreError: The unit cannot be fetched.
    """
    target, partial = directory / unit.path, staging / unit.path.replace("/", "+")
    if target.exists():
        existing = local_unit(target, unit.path)
        if existing is not None and existing.identity == unit.identity:
            return True
        storage.remove_directory(target)
    shutil.rmtree(partial, ignore_errors=True)
    try:
        store.each(lambda name: store.get(f"{unit.path}/{name}", partial / name, [unit.files[name]]), unit.files)
        partial.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(partial / manifest.NAME, unit.manifest)
        manifest.verify(partial)
    except (Altered, Absent, manifest.Damaged) as damage:
        logger.warning("the checkpoint %s/%s is damaged: %s; skipping it", store.url, unit.path, damage)
        shutil.rmtree(partial, ignore_errors=True)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    partial.rename(target)
    return True


def _fetch_or_skip(contents: Contents, unit: Unit, directory: Path, staging: Path) -> bool:
    """Fetches a unit; a damaged one is dropped from the contents."""
    if fetch_unit(contents.store, unit, directory, staging):
        return True
    contents.damaged.append(contents.units.pop(unit.path).path)
    return False


def fetch_newest(contents: Contents, directory: Path, staging: Path) -> list[Unit]:
    """Fetches the newest undamaged checkpoint; returns the older ones, which are not fetched.

    Raises:
      TrainingError: The store has checkpoints, and all of them are damaged.
      StoreError: The store does not answer.
    """
    found = contents.checkpoints
    for position, unit in enumerate(found):
        if _fetch_or_skip(contents, unit, directory, staging):
            return found[position + 1 :]
    if found or any(path.startswith(f"{CHECKPOINTS}/") for path in contents.damaged):
        raise TrainingError(
            "all checkpoints are damaged",
            key=f"{contents.store.url}/{CHECKPOINTS}",
            remedy="restore one from a copy, or remove them to start from scratch",
        )
    return []


def fetch_others(contents: Contents, directory: Path, staging: Path) -> None:
    """Fetches the units that are not checkpoints: the best weights, averages."""
    for unit in list(contents.units.values()):
        if unit.parent != CHECKPOINTS:
            _fetch_or_skip(contents, unit, directory, staging)


def remove_missing(contents: Contents, directory: Path, local: Iterable[str]) -> None:
    """Removes the local units that the store does not have."""
    for path in local:
        if path not in contents.units:
            storage.remove_directory(directory / path)
