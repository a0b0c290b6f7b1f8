"""Frozen weights, written once per run: `base/<digest>/`, beside the folders whose checkpoints refer to them.

    run/
      base/4f1c…/          the weights that no step changes: `state/`, `meta/`, `manifest.json`, as in a checkpoint
      checkpoints/100/     everything else; its manifest has the digest of the base
      checkpoints/200/
      best/200/

A checkpoint is committed only after its base, so a base without a checkpoint may exist, but never the other way round.
Reading a checkpoint reads its base, too: what is returned is the whole state. A base is removed with the last
checkpoint that refers to it.

If the task says what its model is built from (`Task.base_weights`), nothing is written: the manifest has the name and
the digest, and `Engine.load` compares the digest with that of the model as it was built.
"""

from collections.abc import Iterable
from pathlib import Path

from everstep.checkpoint import manifest
from everstep.checkpoint.manifest import Base, Damaged, Manifest
from everstep.errors import TrainingError, UsageError

FOLDER = "base"
"""The folder of a run directory with the frozen weights."""

_NAME_LENGTH = 16  # of the digest, in the name of a folder
_LEVELS = 4  # from a checkpoint up to the directory of its run, at most


class MissingBase(TrainingError):
    """The frozen weights of a checkpoint are missing or damaged; the checkpoint itself is intact."""


def folder_of(checkpoints: Path) -> Path:
    """Returns the folder with the frozen weights that belongs to a folder of checkpoints."""
    return checkpoints.parent / FOLDER


def name_of(digest: str) -> str:
    """Returns the name of the folder of a base."""
    return digest[:_NAME_LENGTH]


def find(path: Path, record: Manifest | None = None) -> Path | None:
    """Returns the directory of the frozen weights that a checkpoint refers to; None if it needs none of the run's.

    Args:
      path: The checkpoint.
      record: Its manifest; read if it is not passed. A directory without a manifest refers to nothing.

    Raises:
      MissingBase: They are not there.
    """
    if record is None:
        if not (path / manifest.NAME).exists():  # as while it is written
            return None
        record = manifest.read(path)
    if record.base is None or record.base.name:
        return None
    name = name_of(record.base.digest)
    if (path.parent.name, path.name) == (FOLDER, name):  # a base itself
        return None
    for place in list(path.absolute().parents)[:_LEVELS]:
        if (place / FOLDER / name / manifest.NAME).is_file():
            return place / FOLDER / name
    raise MissingBase(
        f"the checkpoint {str(path)!r} has no frozen weights, and {FOLDER}/{name} of its run is not there",
        remedy=f"copy {FOLDER}/{name} from the directory of the run, or use a copy of the whole directory",
    )


def verify(path: Path, chosen: manifest.Chosen = manifest.every) -> Manifest:
    """Checks every file of a checkpoint, and of its frozen weights, against their manifests; returns the checkpoint's.

    Args:
      path: The checkpoint.
      chosen: Returns the files whose bytes are checked; see `manifest.verify`.

    Raises:
      Damaged: The checkpoint is not as it was written.
      MissingBase: Its frozen weights are not.
      UsageError: A newer Everstep wrote it.
    """
    record = manifest.verify(path, chosen)
    if (place := find(path, record)) is not None:
        try:
            found = manifest.verify(place, chosen).base
            if found is None or record.base is None or found.digest != record.base.digest:
                raise Damaged("it has other weights")
        except Damaged as damage:
            raise MissingBase(
                f"the frozen weights {str(place)!r} are damaged: {damage}",
                remedy="restore them from a copy: all checkpoints of the run need them",
            ) from damage
    return record


def unused(folder: Path, candidates: Iterable[Base]) -> list[Path]:
    """Returns the directories of those bases that no checkpoint of the run refers to any more.

    Args:
      folder: The run's `base/`.
      candidates: Bases of checkpoints that were removed.
    """
    names = {name_of(base.digest) for base in candidates if not base.name}
    if not names:
        return []
    run = folder.parent
    for found in (*run.glob(f"*/*/{manifest.NAME}"), *run.glob(f"*/*/*/{manifest.NAME}")):
        if found.parent.parent != folder:
            try:
                base = manifest.read(found.parent).base
            except (Damaged, UsageError, OSError):  # which one it refers to is not known
                return []
            names -= {name_of(base.digest)} if base is not None else set()
    return [folder / name for name in sorted(names) if (folder / name).is_dir()]
