"""Determines what the path `task.init_checkpoint` is: a Keras file, a TensorFlow checkpoint, a SavedModel or a run."""

import dataclasses
import re
from pathlib import Path

from everstep.checkpoint import CHECKPOINTS, complete_checkpoints, manifest
from everstep.errors import UsageError

KERAS, WEIGHTS = "the Keras file", "the weights file"
TENSORFLOW, SAVED_MODEL, RUN = "the TensorFlow checkpoint", "the SavedModel", "the run's checkpoint"
AVERAGES = "the averages in the run's checkpoint"

_FORMS = (
    "a .keras or .weights.h5 file, a TensorFlow checkpoint (its prefix, its .index file or its directory), a "
    "SavedModel, or the directory of a run"
)


@dataclasses.dataclass(frozen=True)
class Source:
    """A file or directory with weights.

    Attributes:
      kind: One of the names above.
      paths: The file; for a run its checkpoints, the newest first; for TensorFlow the prefix of the files.
    """

    kind: str
    paths: tuple[Path, ...]


def find(name: str) -> Source:
    """Returns the source of weights at a path.

    A directory is tried in this order: a checkpoint of a run, a run or its `checkpoints/`, a directory in which
    TensorFlow saves checkpoints, a SavedModel, an `export/` folder or a run with nothing else, and finally a directory
    that contains exactly one of these.

    Raises:
      UsageError: The path does not exist, or holds no weights, or several sources of weights.
    """
    path = Path(name)
    try:
        if source := _file(path) or (_directory(path) if path.is_dir() else None):
            return source
        if path.is_dir():
            return _only(path)
        if path.exists():
            raise UsageError("holds no weights", received=name, remedy=f"expected {_FORMS}")
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror or error}", received=name) from error
    raise UsageError("no such file or directory", received=name, remedy=f"expected {_FORMS}")


def inside(root: Path, path: Path) -> Path:
    """Returns a path found in a directory, after a check that it is not a link to outside of it.

    Raises:
      UsageError: It is a link to outside of the directory.
    """
    if not path.resolve().is_relative_to(root.resolve()):
        raise UsageError(
            f"is a link to outside of {str(root)!r}", received=str(path), remedy="specify the path that it points to"
        )
    return path


def _file(path: Path) -> Source | None:
    if not path.name:  # `.` and `/`
        return None
    prefix = path.with_suffix("") if path.name.endswith(".index") else path
    if prefix.with_name(f"{prefix.name}.index").is_file():
        return Source(TENSORFLOW, (inside_all(prefix.parent, prefix),))
    kinds = {".weights.h5": WEIGHTS, ".keras": KERAS}
    kind = next((kind for ending, kind in kinds.items() if path.name.endswith(ending)), None)
    return Source(kind, (path,)) if kind and path.is_file() else None


def _directory(path: Path) -> Source | None:
    return _run(path) or _tensorflow(path) or _saved_model(path) or _export(path)


def _run(path: Path) -> Source | None:
    if (path / manifest.NAME).is_file():
        return Source(RUN, (path,))
    for folder in (path, path / CHECKPOINTS):
        if found := complete_checkpoints(folder):
            return Source(RUN, tuple(inside(path, checkpoint) for checkpoint in reversed(found.values())))
    return None


def _tensorflow(path: Path) -> Source | None:
    """Reads the file `checkpoint`, in which TensorFlow records its newest checkpoint; its directory part is ignored."""
    note = path / "checkpoint"
    if not note.is_file():
        return None
    found = re.search(r'^model_checkpoint_path: "([^"\n]+)"', _head(inside(path, note)), re.MULTILINE)
    prefix = path / Path(found[1]).name if found else path
    if not found or not prefix.with_name(f"{prefix.name}.index").is_file():
        raise UsageError(
            f"names {found[1]!r}, which does not exist" if found else "names no checkpoint",
            received=str(note),
            remedy=f"specify the checkpoint itself, such as {str(path / 'ckpt-100')!r}",
        )
    return Source(TENSORFLOW, (inside_all(path, prefix),))


def _head(path: Path) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(1 << 20)


def _saved_model(path: Path) -> Source | None:
    if not (path / "saved_model.pb").is_file():
        return None
    prefix = path / "variables" / "variables"
    if not prefix.with_name("variables.index").is_file():
        raise UsageError("the SavedModel has no variables", received=str(path))
    return Source(SAVED_MODEL, (inside_all(path, prefix),))


def inside_all(root: Path, prefix: Path) -> Path:
    """Checks every file of a TensorFlow checkpoint with `inside`; returns the prefix."""
    for file in prefix.parent.iterdir():
        if file.name.startswith(f"{prefix.name}."):
            inside(root, file)
    return prefix


def _export(path: Path) -> Source | None:
    for folder in (path, path / "export"):
        if (folder / "model.keras").is_file():
            return Source(KERAS, (inside(path, folder / "model.keras"),))
        if (folder / "saved_model").is_dir():
            return _saved_model(inside(path, folder / "saved_model"))
    return None


def _only(path: Path) -> Source:
    """Returns the only source of weights in a directory."""
    entries = [entry for entry in sorted(path.iterdir()) if not entry.name.startswith(".")]
    found = [(entry, source) for entry in entries if (source := _entry(entry))]
    if len(found) == 1:
        return next(source for entry, source in found if inside(path, entry))
    held = ", ".join(entry.name for entry, _ in found[:5]) + (", …" if len(found) > 5 else "")
    if found:
        raise UsageError(
            f"the directory holds several files with weights ({held})", received=str(path), remedy="specify one of them"
        )
    raise UsageError("the directory holds no weights", received=str(path), remedy=f"expected {_FORMS}")


def _entry(path: Path) -> Source | None:
    return _directory(path) if path.is_dir() else _file(path)
