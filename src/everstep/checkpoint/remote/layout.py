"""What belongs together in a run directory, on this machine and in the store.

A folder with a `manifest.json` is a unit: a checkpoint, or weights in the same form. It is written once, and its
manifest has a digest of every file. In the store the manifest is uploaded last and deleted first: a unit without a
manifest is incomplete and ignored. All other files are independent and may change; the index has their digests.
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
from everstep.checkpoint.complete import CHECKPOINTS
from everstep.checkpoint.remote.store import Absent, Store
from everstep.errors import TrainingError, UsageError

OWN = ".everstep"
"""The folder in the store for what only the mirror needs: the index and the lease."""

RECORD = "run.json"
"""The record of a run."""

HEARTBEAT = ".heartbeat"
"""A file that a live run touches; the only hidden file that is uploaded."""

_STEP = re.compile(r"(?:.*/)?(\d+)(\.replaced)?")
_DAMAGED = re.compile(r"(.*)\.damaged(-\d+)?")

_progress_files: list[str] = []


def register_progress_files(*names: str) -> None:
    """Declares files that record the progress of a run: they are uploaded after the files that they refer to.

    Called with the `progress` of every `RunLayout` that is registered.

        register_progress_files("progress.json", "epochs/")

    Args:
      *names: Paths in the run directory; a path that ends in a slash is a folder.
    """
    _progress_files.extend(name for name in names if name not in _progress_files)


def is_progress_file(name: str) -> bool:
    """Returns whether a file, or its folder, was declared by `register_progress_files`."""
    return any(name.startswith(one) if one.endswith("/") else name == one for one in _progress_files)


def progress_files(directory: Path) -> list[str]:
    """Returns the declared files of a run directory; those outside of folders may not exist."""
    folders = [directory / name for name in _progress_files if name.endswith("/")]
    inside = [path for folder in folders if folder.is_dir() for path in folder.iterdir()]
    return [
        *(name for name in _progress_files if not name.endswith("/")),
        *(path.relative_to(directory).as_posix() for path in inside if not path.name.startswith(".")),
    ]


def completing_files() -> tuple[str, ...]:
    """Returns the names of the files at the top of a run directory that mark others as complete, in upload order."""
    return (*(name for name in _progress_files if not name.endswith("/")), RECORD)


@dataclasses.dataclass(frozen=True)
class Unit:
    """A folder with a manifest, which is either complete or ignored.

    Attributes:
      path: The folder's path in the run directory: `checkpoints/120`.
      identity: The digest of the manifest.
      files: Size and SHA-256 of each file except the manifest, by the path within the folder.
      manifest: The content of the manifest.
      run: Id of the run that wrote the unit.
    """

    path: str
    identity: str
    files: Mapping[str, list[Any]]
    manifest: bytes = b""
    run: str = ""

    @property
    def parent(self) -> str:
        """The folder that contains it: `checkpoints`."""
        return self.path.rpartition("/")[0]

    @property
    def step(self) -> int:
        """The training step, from the folder's name; -1 if that is not a number."""
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
      units: The complete units, by path.
      files: The signatures of the other files, by path; see `signature`.
      damaged: Paths of damaged units: the store may have them undamaged.
    """

    units: dict[str, Unit] = dataclasses.field(default_factory=dict)
    files: dict[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    damaged: set[str] = dataclasses.field(default_factory=set)

    @property
    def newest(self) -> int:
        """The step of the newest checkpoint; -1 if there is none."""
        return max((unit.step for unit in self.units.values() if unit.parent == CHECKPOINTS), default=-1)


def scan(directory: Path) -> Tree:
    """Returns what is in a run directory: no hidden files but the heartbeat, nothing that is removed meanwhile."""
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
        elif manifest.NAME in files and _is_part(f"{path}/{manifest.NAME}"):  # its manifest is damaged
            tree.damaged.add(path)
            names.clear()
        else:
            names[:] = [name for name in names if not name.startswith(".")]
            tree.files |= _signatures(here, "" if path == "." else f"{path}/", files)
    return tree


def _signatures(here: Path, prefix: str, files: Iterable[str]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for name in files:
        if not name.startswith(".") or (name == HEARTBEAT and not prefix):
            with contextlib.suppress(OSError):
                found[prefix + name] = signature(here / name)
    return found


def signature(path: Path) -> tuple[int, ...]:
    """Returns values that change when the file's content changes."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


def local_unit(directory: Path, path: str) -> Unit | None:
    """Returns the unit in a local folder; None if it has no readable manifest."""
    try:
        return parsed(path, (directory / manifest.NAME).read_bytes(), directory)
    except OSError:
        return None


def parsed(path: str, data: bytes, directory: Path | None = None) -> Unit | None:
    """Returns the unit that a manifest describes; None if the manifest is damaged."""
    try:
        document = json.loads(data)
        verified = manifest.read(directory) if directory else None
        files = {str(name): [int(size), str(digest)] for name, (size, digest) in document["files"].items()}
        run = str(document.get("run", "") if verified is None else verified.run)
    except (ValueError, TypeError, KeyError, AttributeError, OSError, UsageError, manifest.Damaged):
        return None
    if any(name.startswith("/") or ".." in name.split("/") for name in files):
        return None
    return Unit(path, hashlib.sha256(data).hexdigest(), files, data, run)


def unit_paths(names: Iterable[str]) -> list[str]:
    """Returns the paths of the units among a store's objects: folders with a manifest, not inside another one."""
    ending = f"/{manifest.NAME}"
    found = sorted(name.removesuffix(ending) for name in names if name.endswith(ending) and not name.startswith(OWN))
    return [path for path in found if not any(path.startswith(f"{other}/") for other in found if other != path)]


def single_files(names: Iterable[str], units: Iterable[str]) -> list[str]:
    """Returns the names in a store that belong neither to units nor to incomplete units."""
    inside = tuple(f"{path}/" for path in units)
    return [
        name
        for name in names
        if not name.startswith((f"{OWN}/", *inside)) and not _is_part(name) and not _is_hidden(name)
    ]


def leftovers(names: Iterable[str], units: Iterable[str], known: Iterable[str]) -> list[str]:
    """Returns the objects in a store of units whose upload or removal was interrupted."""
    inside = tuple(f"{path}/" for path in units)
    listed = set(known)
    return [name for name in names if _is_part(name) and not name.startswith(inside) and name not in listed]


def _is_part(name: str) -> bool:
    """Whether an object is part of a checkpoint, by its name."""
    return re.match(rf"{CHECKPOINTS}/\d+(\.replaced)?/", name) is not None


def _is_hidden(name: str) -> bool:
    return name != HEARTBEAT and any(part.startswith(".") for part in name.split("/"))


INDEX = f"{OWN}/index.json"
INDEX_FORMAT = 1

Entries = dict[str, list[Any]]
"""Size and SHA-256 by path."""


@dataclasses.dataclass
class Index:
    """Size and SHA-256 of each file in the store that is not in a unit, and which local copy wrote last.

    Files change, and an upload may be killed between a file and the index. So the index is written twice: before the
    upload, with what is about to be uploaded, and after it. A fetched file has to match one of the two.

    Attributes:
      writer: Id of the local copy that wrote last.
      files: The uploaded files.
      pending: What the store may have received since, by path: uploads may be interrupted more than once.
    """

    writer: str = ""
    files: Entries = dataclasses.field(default_factory=dict)
    pending: dict[str, list[list[Any]]] = dataclasses.field(default_factory=dict)

    def allowed(self, path: str) -> list[list[Any]]:
        """Returns the sizes and digests that a file may have; empty if the index does not know the file."""
        known = [self.files[path]] if path in self.files else []
        return [*known, *self.pending.get(path, [])]

    def expect(self, new: Entries) -> None:
        """Adds what is about to be uploaded."""
        for path, entry in new.items():
            before = self.pending.setdefault(path, [])
            if entry not in before:
                before.append(entry)

    def settle(self, new: Entries) -> None:
        """Records what has been uploaded."""
        self.files |= new
        for path in new:
            self.pending.pop(path, None)

    def write(self, store: Store) -> None:
        """Writes the index to the store."""
        document = {"format": INDEX_FORMAT, **dataclasses.asdict(self)}
        store.put_bytes(INDEX, json.dumps(document, indent=1, sort_keys=True).encode())


def read_index(store: Store) -> Index | None:
    """Returns a store's index; None if it has none, as when a user copied a run directory there.

    Raises:
      TrainingError: The index is damaged, or written by a newer Everstep.
      StoreError: The index cannot be read.
    """
    try:
        document = json.loads(store.get_bytes(INDEX))
        if document.pop("format") > INDEX_FORMAT:
            raise TrainingError(
                "was written by a newer Everstep", key=store.url, remedy="upgrade, or choose another URL"
            )
        return Index(**document)
    except Absent:
        return None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise TrainingError(
            f"is damaged ({type(error).__name__})",
            key=f"{store.url}/{INDEX}",
            remedy="restore it, or remove it to continue without digests of single files",
        ) from error
