"""Finds the model that `everstep predict RUN` means: of a run, of a run known to MLflow, or exported on its own.

What has to be fetched from MLflow is in a temporary folder, and removed after use.
"""

import contextlib
import dataclasses
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from everstep import storage
from everstep.errors import UsageError
from everstep.run.layouts import layouts
from everstep.run.record import Record, find_runs, read
from everstep.tracking.mlflow import checked_uri, prepare_client, without_credentials

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
            raise UsageError("expected a .keras file, a SavedModel or a run directory", key="RUN", received=name)
        return Found(path)
    if path.is_dir():
        return _directory(path)
    if _ID.fullmatch(name):
        return _directory(run_of(name))
    raise UsageError(
        "does not exist", key="RUN", received=name, remedy="name a run directory, an exported model, or the id of a run"
    )


def _directory(path: Path) -> Found:
    if (path / "saved_model.pb").is_file():
        return Found(path)
    exports = [place for layout in layouts() for place in layout.models]
    names = [Path(place).name for place in exports]
    places = ["export/model.keras", "model.keras", *exports, "export/saved_model", "saved_model", *names]
    model = next((path / place for place in places if (path / place).exists()), None) or _newest_version(path)
    programs = [*(place for layout in layouts() for place in layout.programs), "model.pt2"]
    if model is None and (program := next((path / place for place in programs if (path / place).exists()), None)):
        raise _program(program)
    if (path / "run.json").is_file():
        return Found(model, path, read(path))
    if model is None:
        raise UsageError("contains neither run.json nor model.keras", key="RUN", received=str(path))
    return Found(model)


def _program(path: Path) -> UsageError:
    return UsageError(
        "is a PyTorch program, and loading one may run any code",
        key="RUN",
        received=str(path),
        remedy="use a run, a .keras file or a SavedModel, or load this one yourself with torch.export.load",
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
        f"no run below {str(Path(root).resolve())!r} has this id, neither as its own nor as MLflow's",
        key="RUN",
        received=identity,
        remedy="call this in the project, or name the run directory",
    )


def _remote_id(directory: Path) -> str | None:
    try:
        sent = storage.read_json(directory / "spool" / "mlflow.sent.json")
    except UsageError:
        return None
    return sent.get("remote_id") if isinstance(sent, dict) else None


Result = TypeVar("Result")

_DATABASES = ("mlflow.db", "runs/mlflow.db")
_SAVED = "saved_model.pb"
_MOST_FOLDERS = 200
_PASSED_BY = ("checkpoints", "spool", "tensorboard")


class Kept(NamedTuple):
    """A model among the artifacts of a run: what to ask for, and its path in that."""

    root: str
    path: str

    @property
    def uri(self) -> str:
        """What MLflow calls it."""
        return f"{self.root}/{self.path}" if self.path else self.root


def stores(start: storage.PathLike = ".") -> list[str]:
    """Returns where a run can be known: `MLFLOW_TRACKING_URI`, else the databases around a folder, the nearest first.

    A folder with `runs` has it at its top; earlier versions made it in `runs`.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return [given]
    here = Path(start).absolute()
    files = [folder / name for folder in (here, *here.parents) for name in _DATABASES]
    return [f"sqlite:///{file}" for file in files if file.is_file()]


@contextlib.contextmanager
def fetched(identity: str, path: str = "", start: storage.PathLike = ".") -> Iterator[Found]:
    """Yields the model of a run that MLflow knows; what was fetched is gone after the block.

    Args:
      identity: The run's id.
      path: The artifact that is the model; by default the only one that is.
      start: The folder from which on to look for a database.

    Raises:
      UsageError: Nobody knows the run, the server does not answer, or there is no model, or more than one.
    """
    uri, client, run = _find_in_stores(identity, stores(start))
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        model = _ask_mlflow(uri, lambda: _fetch(client, run, path, uri, folder))
        metrics = {"mlflow": dict(run.data.metrics)}
        yield Found(model, None, {"id": identity, "metrics": metrics, "backend": run.data.tags.get("backend")})


def _find_in_stores(identity: str, uris: Sequence[str]) -> tuple[str, Any, Any]:
    """Returns which store knows a run, its client and the run."""
    for given in uris:
        uri = checked_uri(given)
        prepare_client(uri)
        client = _client(uri)
        if (run := _ask_mlflow(uri, lambda client=client: _get_run(client, identity))) is not None:  # type: ignore[misc]
            return uri, client, run
    raise UsageError(
        f"no run below {str(Path.cwd())!r} and none in an MLflow store has this id; searched stores: "
        f"{', '.join(map(without_credentials, uris)) or 'none'}",
        key="RUN",
        received=identity,
        remedy="" if uris else "set MLFLOW_TRACKING_URI, or call this in the project",
    )


def _client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    return MlflowClient(uri)


def _get_run(client: Any, identity: str) -> Any:
    """Returns a run, or None if the store has none of this id."""
    try:
        return client.get_run(identity)
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _fetch(client: Any, run: Any, path: str, uri: str, folder: str) -> Path:
    from mlflow.artifacts import download_artifacts

    run_root = f"runs:/{run.info.run_id}"
    kept = Kept(run_root, path) if path else _the_model(run_root, list(_models(client, run, uri)))
    return _inside(Path(download_artifacts(artifact_uri=kept.uri, dst_path=folder, tracking_uri=uri)))


def _inside(path: Path) -> Path:
    """Returns the model in what was fetched: it, or what MLflow's own `log_model` has put below it."""
    if path.is_file() or (path / _SAVED).is_file():
        return path
    found = [*path.rglob("*.keras"), *(file.parent for file in path.rglob(_SAVED))]
    if not found:
        raise UsageError("the artifact is not a .keras file or a SavedModel", key="RUN", received=path.name)
    return found[0]


def _models(client: Any, run: Any, uri: str) -> Iterator[Kept]:
    """Yields what is a model among a run's artifacts, and the models that were logged with it."""
    from mlflow.artifacts import list_artifacts

    waiting, asked = [""], 0
    while waiting and asked < _MOST_FOLDERS:
        folder, asked = waiting.pop(0), asked + 1
        for file in client.list_artifacts(run.info.run_id, folder or None):
            name = file.path.rpartition("/")[2]
            if file.is_dir and name not in _PASSED_BY:
                waiting.append(file.path)
            elif name == _SAVED or name.endswith(".keras"):
                yield Kept(f"runs:/{run.info.run_id}", folder if name == _SAVED else file.path)
    for logged in getattr(run.outputs, "model_outputs", None) or ():
        root = f"models:/{logged.model_id}"
        if any(file.path == "MLmodel" for file in list_artifacts(artifact_uri=root, tracking_uri=uri)):
            yield Kept(root, "")


def _the_model(run: str, models: list[Kept]) -> Kept:
    """Returns the only model there is; `model.keras` before copies of it in other forms."""
    named = [kept for kept in models if kept.path.rpartition("/")[2] == "model.keras"]
    files = [kept for kept in models if kept.path.endswith(".keras")]
    chosen = named[:1] or files or models
    if len(chosen) == 1:
        return chosen[0]
    if not chosen:
        raise UsageError(
            "has no .keras file and no SavedModel among its artifacts",
            key="RUN",
            received=run,
            remedy="name its run directory",
        )
    listed = ", ".join(f"{kept.uri}" for kept in chosen[:5])
    raise UsageError(f"has {len(chosen)} models", key="RUN", received=run, remedy=f"name one of them: {listed}")


def _ask_mlflow(uri: str, call: Callable[[], Result]) -> Result:
    """Calls MLflow; an error becomes one line, without credentials."""
    try:
        return call()
    except UsageError:
        raise
    except Exception as error:  # of MLflow, of the database or of the network
        first: BaseException = error  # what everything else came from: `[Errno 111] Connection refused`
        while inner := first.__cause__ or first.__context__:
            first = inner
        reason = (without_credentials(str(first)).strip().splitlines() or [type(first).__name__])[0][:300]
        raise UsageError(f"MLflow at {without_credentials(uri)} cannot be reached: {reason}") from error


_RUN = re.compile(r"(?:runs:/)?([0-9a-f]{32})(?:/(.+))?")


@contextlib.contextmanager
def opened(name: str) -> Iterator[Found]:
    """Yields what a name means.

    Args:
      name: As for `find`; or the id of a run that only MLflow knows: `<id>`, `runs:/<id>`, `runs:/<id>/<artifact>`.

    Raises:
      UsageError: There is no such thing, or it cannot be fetched.
    """
    run = _RUN.fullmatch(name.rstrip("/"))
    if run is None or Path(name).exists():
        yield find(name)
        return
    identity, artifact = run.groups()
    here = None if artifact else _here(identity)
    if here is not None:
        yield here
        return
    with fetched(identity, artifact or "") as found:
        yield found


def _here(identity: str) -> Found | None:
    """Returns a run whose directory is below the working directory or its project, if that has a model."""
    for root in (Path(), _project()):
        with contextlib.suppress(UsageError):
            if root is not None:
                return find(str(run_of(identity, root)))
    return None


def _project() -> Path | None:
    here = Path.cwd()
    return next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file()), None)
