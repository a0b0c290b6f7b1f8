"""What `everstep predict RUN` means: a run, a run known to MLflow, or a model that was exported."""

import dataclasses
import re
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.run.record import Record, find_runs, read

_PLACES = (
    "export/model.keras",
    "model.keras",
    "exported/savedmodel",
    "export/saved_model",
    "saved_model",
    "savedmodel",
)
_PROGRAMS = ("exported/model.pt2", "model.pt2")
_ID = re.compile(r"[0-9a-f]{32}")


@dataclasses.dataclass(frozen=True)
class Found:
    """Where a model is.

    Attributes:
      model: The `.keras` file, or the directory of a SavedModel; None for a run that has no export.
      directory: The run directory; None where the model alone was named.
      record: What the run says of itself.
    """

    model: Path | None
    directory: Path | None = None
    record: Record | None = None

    @property
    def backend(self) -> str | None:
        """The backend that the run was trained on."""
        return (self.record or {}).get("backend")


def find(name: str) -> Found:
    """Returns what a name means.

    Args:
      name: A run directory, a `.keras` file, a SavedModel or a folder of its versions, or the id of a run: its own, or
        that which MLflow gave it, for a run below the working directory.

    Raises:
      UsageError: There is no such thing.
    """
    path = Path(name)
    if path.is_file():
        if path.suffix == ".pt2":
            raise _program(path)
        if path.suffix != ".keras":
            raise UsageError(f"{name!r} is no model: expected a .keras file, a SavedModel or a run directory")
        return Found(path)
    if path.is_dir():
        return _directory(path)
    if _ID.fullmatch(name):
        return _directory(run_of(name))
    raise UsageError(f"there is no {name!r}: name a run directory, an exported model, or the id of a run")


def _directory(path: Path) -> Found:
    if (path / "saved_model.pb").is_file():
        return Found(path)
    model = next((path / place for place in _PLACES if (path / place).exists()), None) or _newest_version(path)
    if model is None and (program := next((path / place for place in _PROGRAMS if (path / place).exists()), None)):
        raise _program(program)
    if (path / "run.json").is_file():
        return Found(model, path, read(path))
    if model is None:
        raise UsageError(f"{str(path)!r} holds no run and no model: there is no run.json and no {_PLACES[1]} in it")
    return Found(model)


def _program(path: Path) -> UsageError:
    return UsageError(
        f"{str(path)!r} is a program of PyTorch, and to load one may run any code: predict with a run, a .keras file "
        "or a SavedModel, or load this one yourself with torch.export.load"
    )


def _newest_version(path: Path) -> Path | None:
    """Returns the newest of the SavedModels that are numbered, as TensorFlow Serving watches them."""
    versions = [file.parent for file in path.glob("*/saved_model.pb") if file.parent.name.isdecimal()]
    return max(versions, key=lambda version: int(version.name), default=None)


def run_of(identity: str, root: storage.PathLike = ".") -> Path:
    """Returns the run directory below `root` of a run's id: its own, or MLflow's.

    Raises:
      UsageError: There is none.
    """
    for directory, record in find_runs(root):
        if identity in (record["id"], _remote_id(directory)):
            return directory
    raise UsageError(
        f"there is no run {identity!r} below {str(Path(root).resolve())!r}, neither by its own id nor by MLflow's: "
        "call this in the project, or name the run directory"
    )


def _remote_id(directory: Path) -> str | None:
    try:
        told = storage.read_json(directory / "spool" / "mlflow.sent.json")
    except UsageError:
        return None
    return told.get("remote_id") if isinstance(told, dict) else None
