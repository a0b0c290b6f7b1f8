"""`fork`: a new run directory that begins with a checkpoint of another run.

What a resumed attempt needs is copied: the checkpoint with its frozen weights, the programs of a GPU, the history so
far. The checkpoint gets the id of the new run, so that the new directory is a run like any other: the same call or
command that trained the parent continues it, and is checked like any resumed run. The parent is only read.
"""

import dataclasses
import os
import shutil
import uuid
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import CHECKPOINTS, Damaged, complete_checkpoints
from everstep.checkpoint import base as bases
from everstep.checkpoint import manifest as manifests
from everstep.checkpoint.remote import is_url
from everstep.errors import UsageError
from everstep.run import FORKED_FROM, Record, read

_COPIED = ("config.yaml", "history.csv", "programs", ".compiled")
"""What is copied beside the checkpoint; rows of the history after the step go when the fork is trained."""

_NOT_OF_THE_FORK = ("other_files", "samples")
"""What a record says of other files in the directory."""

_OF_THE_END = {
    **{"attempts": [], "metrics": {"train": {}, "validation": {}}, "cost": {}},
    **dict.fromkeys(("status", "digest", "weights_digest", "stopped_early", "final_weights")),
}
"""What a record says of the end of a run, as it is before the first attempt."""


def fork(run: storage.PathLike, at: int, model_dir: storage.PathLike) -> Path:
    """Creates a run that begins with the state of another one: weights, optimizer, data position, random numbers.

        everstep.fork("runs/digits", at=500, model_dir="runs/digits-slower")
        everstep.fit(model, x, y, epochs=20, model_dir="runs/digits-slower", allow_change="optimizer.learning_rate")

    Nothing of the other run is changed. Unchanged, the fork ends with the same bits.

    Args:
      run: The run directory.
      at: The step of one of its checkpoints.
      model_dir: The directory of the new run; it must not exist, or be empty.

    Returns:
      The directory.

    Raises:
      UsageError: The run has no such checkpoint, or it is damaged; or the directory is in use.
    """
    if is_url(model_dir):
        raise UsageError(
            "is a URL", key="model_dir", received=str(model_dir), remedy="choose a directory of this machine"
        )
    parent, into = Path(run).absolute(), Path(model_dir)
    record = read(parent)
    checkpoint = _checkpoint(parent, at)
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise UsageError("is not empty", key="model_dir", received=str(into), remedy="choose a new directory")
    try:
        manifest = bases.verify(checkpoint)
        frozen = bases.find(checkpoint, manifest)
    except Damaged as damage:
        reason = f"its checkpoint of step {at} is damaged: {damage}"
        raise UsageError(reason, key=str(run), remedy=_others(parent, at)) from None
    identity = uuid.uuid4().hex
    if into.is_dir():
        into.rmdir()
    into.parent.mkdir(parents=True, exist_ok=True)
    with storage.atomic_path(into) as temporary:
        place = temporary / CHECKPOINTS / str(at)
        shutil.copytree(checkpoint, place, copy_function=_link)
        manifests.write(place, dataclasses.replace(manifest, run=identity), manifest.files)
        if frozen is not None:
            shutil.copytree(frozen, bases.folder_of(place.parent) / frozen.name, copy_function=_link)
        for name in _COPIED:
            _copy(parent / name, temporary / name)
        storage.write_text(temporary / "run.json", storage.json_text(_record(record, identity, parent, at)) + "\n")
    return into


def _checkpoint(parent: Path, at: int) -> Path:
    saved = complete_checkpoints(parent / CHECKPOINTS)
    if at not in saved:
        raise UsageError(
            f"has no checkpoint of step {at}", key=str(os.path.relpath(parent)), received=at, remedy=_others(parent, at)
        )
    return saved[at]


def _others(parent: Path, at: int) -> str:
    steps = [step for step in complete_checkpoints(parent / CHECKPOINTS) if step != at]
    if not steps:
        return "it has no others: trainer.keep_ladder keeps checkpoints of a whole run"
    shown = sorted(sorted(steps, key=lambda step: abs(step - at))[:8])
    return f"it has {', '.join(map(str, shown))}{' and others' if len(shown) < len(steps) else ''}"


def _record(parent: Record, identity: str, directory: Path, at: int) -> dict[str, Any]:
    """Returns the record of a fork before its first attempt."""
    states = {step: digest for step, digest in parent["states"].items() if int(step) <= at}
    origin = {"run": parent["id"], "directory": str(directory), "step": at}
    taken = {key: value for key, value in parent.items() if key not in _NOT_OF_THE_FORK}
    return {**taken, **_OF_THE_END, "id": identity, "step": at, "states": states, FORKED_FROM: origin}


def _link(source: str, target: str) -> None:
    """Gives a file of a checkpoint a second name, which takes no room; such files are never changed, but replaced."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without such names
        shutil.copy2(source, target)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target)
    elif source.exists():
        shutil.copy2(source, target)
