"""What belongs together in a run directory, here and in the store.

A folder with a `manifest.json` is a unit: a checkpoint, or weights in the same form. It is written once, and its
manifest has a digest of every file; in the store the manifest comes last and goes first, so a unit without one is not
there. All other files stand for themselves and may change.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from everstep.checkpoint import manifest
from everstep.errors import UsageError

OWN = ".everstep"
"""The folder of what only the mirror needs, in the store: the index and the lease."""

CHECKPOINTS = "checkpoints"

_HEARTBEAT = ".heartbeat"
_STEP = re.compile(r"(?:.*/)?(\d+)(\.replaced)?")
_DAMAGED = re.compile(r"(.*)\.damaged(-\d+)?")


@dataclasses.dataclass(frozen=True)
class Unit:
    """A folder that is complete or not there.

    Attributes:
      path: Its path in the run directory: `checkpoints/120`.
      identity: The digest of its manifest.
      files: Size and SHA-256 of each file but the manifest, by the path within the folder.
      manifest: The manifest itself.
      run: Id of the run that wrote it.
    """

    path: str
    identity: str
    files: Mapping[str, list[Any]]
    manifest: bytes = b""
    run: str = ""

    @property
    def parent(self) -> str:
        """The folder it is in: `checkpoints`."""
        return self.path.rpartition("/")[0]

    @property
    def step(self) -> int:
        """The step it is of; -1 if its name tells none."""
        found = _STEP.fullmatch(self.path)
        return int(found[1]) if found else -1

    @property
    def names(self) -> list[str]:
        """The names of all its objects, the manifest last."""
        return [f"{self.path}/{name}" for name in (*sorted(self.files), manifest.NAME)]


@dataclasses.dataclass
class Tree:
    """What is in a run directory on this machine.

    Attributes:
      units: Complete ones, by path.
      files: The other files, by path; with what changes when they do.
      damaged: Paths of units that were set aside: what the store has of them may be good.
    """

    units: dict[str, Unit] = dataclasses.field(default_factory=dict)
    files: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    damaged: set[str] = dataclasses.field(default_factory=set)

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint; -1 if there is none."""
        return max((unit.step for unit in self.units.values() if unit.parent == CHECKPOINTS), default=-1)


def scan(directory: Path) -> Tree:
    """Looks at a run directory; what vanishes meanwhile does not count, nor do hidden files but the heartbeat."""
    tree = Tree()
    for folder, names, files in os.walk(directory):
        here = Path(folder)
        path = here.relative_to(directory).as_posix()
        if found := _DAMAGED.fullmatch(path):
            tree.damaged.add(found[1])
            names.clear()
        elif manifest.NAME in files and (unit := local_unit(here, path)):
            tree.units[path] = unit
            names.clear()
        elif manifest.NAME in files and _is_part(f"{path}/{manifest.NAME}"):  # not as it was written
            tree.damaged.add(path)
            names.clear()
        else:
            names[:] = [name for name in names if not name.startswith(".")]
            tree.files |= _signatures(here, "" if path == "." else f"{path}/", files)
    return tree


def _signatures(here: Path, prefix: str, files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name in files:
        if not name.startswith(".") or (name == _HEARTBEAT and not prefix):
            with contextlib.suppress(OSError):
                found[prefix + name] = signature(here / name)
    return found


def signature(path: Path) -> tuple[int, ...]:
    """Returns what changes when a file does."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def local_unit(directory: Path, path: str) -> Unit | None:
    """Returns the unit in a folder of this machine; None if there is no manifest that can be read."""
    try:
        return parsed(path, (directory / manifest.NAME).read_bytes(), directory)
    except OSError:
        return None


def parsed(path: str, data: bytes, directory: Path | None = None) -> Unit | None:
    """Returns the unit that a manifest describes; None if it is not as it was written."""
    try:
        document = json.loads(data)
        told = manifest.read(directory) if directory else None
        files = {str(name): [int(size), str(digest)] for name, (size, digest) in document["files"].items()}
        run = str(document.get("run", "") if told is None else told.run)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, UsageError, manifest.Damaged):
        return None
    if any(name.startswith("/") or ".." in name.split("/") for name in files):
        return None
    return Unit(path, hashlib.sha256(data).hexdigest(), files, data, run)


def unit_paths(names: Iterable[str]) -> list[str]:
    """Returns the units among the names of a store's objects: those that have a manifest, the outermost ones."""
    ending = f"/{manifest.NAME}"
    found = sorted(name.removesuffix(ending) for name in names if name.endswith(ending) and not name.startswith(OWN))
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found if other != path)]


def single_files(names: Iterable[str], units: Iterable[str]) -> list[str]:
    """Returns the names in a store that stand for themselves; not what half a unit has left."""
    inside = tuple(f"{path}/" for path in units)
    return [
        name
        for name in names
        if not name.startswith((f"{OWN}/", *inside)) and not _is_part(name) and not _is_hidden(name)
    ]


def leftovers(names: Iterable[str], units: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns what is left in a store of units that were never complete, or were removed halfway."""
    inside = tuple(f"{path}/" for path in units)
    listed = set(known)
    return [name for name in names if _is_part(name) and not name.startswith(inside) and name not in listed]


def _is_part(name: str) -> bool:
    """Whether an object can only be a part of a checkpoint."""
    return re.match(rf"{CHECKPOINTS}/\d+(\.replaced)?/", name) is not None


def _is_hidden(name: str) -> bool:
    return name != _HEARTBEAT and any(part.startswith(".") for part in name.split("/"))
