"""From the store to this machine: what a run needs to go on, every byte as it was uploaded."""

import logging
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import manifest
from everstep.errors import TrainingError
from everstep.remote import index as indexes
from everstep.remote.checksums import sha256
from everstep.remote.failures import Absent, Altered
from everstep.remote.index import Index
from everstep.remote.layout import CHECKPOINTS, Unit, local_unit, parsed, single_files, unit_paths
from everstep.remote.transfer import Store

logger = logging.getLogger(__name__)


class Contents:
    """What a store has of a run, as it was when this was made.

    Attributes:
      names: What the store says of every object.
      index: Its index; None if it has none.
      units: The complete units, by path.
      damaged: Units whose manifest is not as it was written.

    Raises:
      StoreError: The store cannot be asked.
      TrainingError: Its index is damaged.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.names: Mapping[str, Any] = store.listing()
        self.index: Index | None = indexes.read(store) if indexes.NAME in self.names else None
        self.units: dict[str, Unit] = {}
        self.damaged: list[str] = []
        for path in unit_paths(self.names):
            self._learn(path)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing of a run."""
        return not self.units and not self.files()

    @property
    def checkpoints(self) -> list[Unit]:
        """The complete checkpoints, the newest first."""
        return sorted((u for u in self.units.values() if u.parent == CHECKPOINTS), key=lambda u: (-u.step, u.path))

    def files(self) -> list[str]:
        """Returns the files that stand for themselves and belong to the run."""
        found = single_files(self.names, [*self.units, *self.damaged])
        return [name for name in found if self.index is None or self.index.allowed(name)]

    def _learn(self, path: str) -> None:
        try:
            unit = parsed(path, self.store.get_bytes(f"{path}/{manifest.NAME}"))
        except Absent:  # removed meanwhile
            return
        if unit is None:
            logger.warning("%s/%s is damaged: its manifest cannot be read; it is left out", self.store.url, path)
            self.damaged.append(path)
        else:
            self.units[path] = unit


def fetch_files(contents: Contents, directory: Path) -> None:
    """Fetches what is no unit; what is there already, as it should be, is not fetched again.

    Raises:
      TrainingError: A file is not as it was uploaded.
      StoreError: It cannot be fetched.
    """
    names = contents.files()
    lost = sorted(set(contents.index.files) - set(names)) if contents.index else []
    if lost:
        logger.warning("%s has lost %s: going on without", contents.store.url, ", ".join(lost[:5]))
    contents.store.each(lambda name: _fetch_file(contents, name, directory / name), names)


def _fetch_file(contents: Contents, name: str, target: Path) -> None:
    allowed = contents.index.allowed(name) if contents.index else []
    if target.is_file() and [target.stat().st_size, sha256(target)] in allowed:
        return
    try:
        contents.store.get(name, target, allowed)
    except Altered as error:
        raise TrainingError(f"{error}: bring it back from a copy, or remove it to go on without it") from error
    except Absent:
        logger.debug("%s is gone", name)


def fetch_unit(store: Store, unit: Unit, directory: Path, staging: Path) -> bool:
    """Fetches a unit, which appears when it is complete; returns whether it is as it was uploaded.

    Args:
      store: The store.
      unit: The unit.
      directory: The run directory.
      staging: Where it is put together: on the same file system, and nobody cleans up there.

    Raises:
      StoreError: It cannot be fetched.
    """
    target, making = directory / unit.path, staging / unit.path.replace("/", "+")
    if target.exists():
        there = local_unit(target, unit.path)
        if there is not None and there.identity == unit.identity:
            return True
        storage.remove_directory(target)
    shutil.rmtree(making, ignore_errors=True)
    try:
        store.each(lambda name: store.get(f"{unit.path}/{name}", making / name, [unit.files[name]]), unit.files)
        making.mkdir(parents=True, exist_ok=True)
        storage.write_bytes(making / manifest.NAME, unit.manifest)
        manifest.verify(making)
    except (Altered, Absent, manifest.Damaged) as damage:
        logger.warning("the checkpoint %s/%s is damaged: %s; it is left out", store.url, unit.path, damage)
        shutil.rmtree(making, ignore_errors=True)
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    making.rename(target)
    return True


def _fetch_or_leave_out(contents: Contents, unit: Unit, directory: Path, staging: Path) -> bool:
    """Fetches a unit; one that is damaged does not count as one of the store's any more."""
    if fetch_unit(contents.store, unit, directory, staging):
        return True
    contents.damaged.append(contents.units.pop(unit.path).path)
    return False


def fetch_newest(contents: Contents, directory: Path, staging: Path) -> list[Unit]:
    """Fetches the newest checkpoint that is as it was uploaded; returns those that are older, and not fetched.

    Raises:
      TrainingError: There are checkpoints, and all of them are damaged.
      StoreError: The store does not answer.
    """
    found = contents.checkpoints
    for position, unit in enumerate(found):
        if _fetch_or_leave_out(contents, unit, directory, staging):
            return found[position + 1 :]
    if found or any(path.startswith(f"{CHECKPOINTS}/") for path in contents.damaged):
        raise TrainingError(
            f"no checkpoint in {contents.store.url} can be used, all are damaged: bring one back from a copy, or "
            "remove them to start anew"
        )
    return []


def fetch_others(contents: Contents, directory: Path, staging: Path) -> None:
    """Fetches the units that are no checkpoints: the best weights, averages."""
    for unit in list(contents.units.values()):
        if unit.parent != CHECKPOINTS:
            _fetch_or_leave_out(contents, unit, directory, staging)


def drop_gone(contents: Contents, directory: Path, local: Iterable[str]) -> None:
    """Removes local units that the store has no more, or has otherwise."""
    for path in local:
        if path not in contents.units:
            storage.remove_directory(directory / path)
