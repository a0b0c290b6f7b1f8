"""Finds the model that a name stands for: a run's, that of a run known to MLflow, or an exported one.

`opened` is the entry point. What it fetches from MLflow is in a temporary folder, which is removed after use.
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
from everstep.checkpoint.remote import is_url, local_view
from everstep.errors import UsageError
from everstep.run import Record, find_runs, layouts, named_run, read, runs_like, selected_steps
from everstep.tracking import checked_uri, prepare_client, without_credentials

Result = TypeVar("Result")

_DATABASES = ("mlflow.db", "runs/mlflow.db")
_SAVED = "saved_model.pb"
_MOST_FOLDERS = 200  # of a run's artifacts that are searched
_SKIPPED_FOLDERS = ("checkpoints", "spool", "tensorboard")
_ID = re.compile(r"[0-9a-f]{32}")
_MLFLOW_RUN = re.compile(r"(?:runs:/)?([0-9a-f]{32})(?:/(.+))?")


@dataclasses.dataclass(frozen=True)
class Found:
    """Where a model is.

    Attributes:
      model: The `.keras` file, or the directory of a SavedModel; None for a run that has no export.
      directory: The run directory; None if the name stands for a model alone.
      record: The run's `run.json`; None if there is none.
    """

    model: Path | None
    directory: Path | None = None
    record: Record | None = None

    @property
    def backend(self) -> str | None:
        """The backend that the run was trained on; None if it is unknown."""
        return (self.record or {}).get("backend")


def local_run(name: str, checkpoint: str | None = None, checkpoints: bool = True) -> str:
    """Returns where a run is on this machine: its directory, or the copy of a run at a URL, which is fetched.

    Args:
      name: A path, also without the prefix `runs/`; a URL, or anything else that names a run.
      checkpoint: The value of `--checkpoint`; of a run at a URL, those steps are fetched beside the newest.
      checkpoints: Whether any checkpoints are needed.

    Raises:
      UsageError: There is no run at the URL, or it lacks these steps.
    """
    if not is_url(name):
        return named_run(name)
    if checkpoint is None:
        return str(local_view(name, checkpoints))
    return str(local_view(name, checkpoints, lambda steps: selected_steps(checkpoint, steps, name)))


@contextlib.contextmanager
def opened(name: str) -> Iterator[Found]:
    """Yields the model that a name stands for; what was fetched is removed after the block.

    Args:
      name: As for `find`; or the id of a run that only MLflow knows: `<id>`, `runs:/<id>`, `runs:/<id>/<artifact>`.

    Raises:
      UsageError: There is no such run or model, or it cannot be fetched.
    """
    run = _MLFLOW_RUN.fullmatch(name.rstrip("/"))
    if run is None or Path(name).exists():
        yield find(name)
        return
    identity, artifact = run.groups()
    if not artifact:
        here = Path.cwd()
        project = next((folder for folder in (here, *here.parents) if (folder / "pyproject.toml").is_file()), None)
        for root in (Path(), project):
            found = None
            with contextlib.suppress(UsageError):
                found = find(str(run_of(identity, root))) if root is not None else None
            if found is not None:
                yield found
                return
    with fetched(identity, artifact or "") as found:
        yield found


def find(name: str) -> Found:
    """Returns the model that a name stands for, if it is on this machine.

    Args:
      name: A run directory, also without the prefix `runs/`; a `.keras` file, a SavedModel or a folder of its versions;
        or the id of a run below the working directory, its own or MLflow's.

    Raises:
      UsageError: There is no such run or model.
    """
    path = Path(named_run(name))
    if path.is_file():
        if path.suffix == ".pt2":
            raise _refused_program(path)
        if path.suffix != ".keras":
            raise UsageError("expected a .keras file, a SavedModel or a run directory", key="RUN", received=name)
        return Found(path)
    if path.is_dir():
        return _find_in_directory(path)
    if _ID.fullmatch(name):
        return _find_in_directory(run_of(name))
    raise UsageError(
        "does not exist",
        key="RUN",
        received=name,
        remedy=runs_like(name) or "name a run directory, an exported model, or the id of a run",
    )


def _find_in_directory(path: Path) -> Found:
    if (path / "saved_model.pb").is_file():
        return Found(path)
    exports = [place for layout in layouts() for place in layout.models]
    names = [Path(place).name for place in exports]
    places = ["export/model.keras", "model.keras", *exports, "export/saved_model", "saved_model", *names]
    model = next((path / place for place in places if (path / place).exists()), None) or _newest_version(path)
    programs = [*(place for layout in layouts() for place in layout.programs), "model.pt2"]
    if model is None and (program := next((path / place for place in programs if (path / place).exists()), None)):
        raise _refused_program(program)
    if (path / "run.json").is_file():
        return Found(model, path, read(path))
    if model is None:
        raise UsageError("contains neither run.json nor model.keras", key="RUN", received=str(path))
    return Found(model)


def _refused_program(path: Path) -> UsageError:
    return UsageError(
        "is a PyTorch program, and loading one may run any code",
        key="RUN",
        received=str(path),
        remedy="use a run, a .keras file or a SavedModel, or load this one yourself with torch.export.load",
    )


def _newest_version(path: Path) -> Path | None:
    """Returns the newest of several numbered SavedModels, as TensorFlow Serving watches them."""
    versions = [file.parent for file in path.glob("*/saved_model.pb") if file.parent.name.isdecimal()]
    return max(versions, key=lambda version: int(version.name), default=None)


def run_of(identity: str, root: storage.PathLike = ".") -> Path:
    """Returns the directory below `root` of the run with this id, its own or MLflow's.

    Raises:
      UsageError: There is none.
    """
    for directory, record in find_runs(root):
        sent = None
        with contextlib.suppress(UsageError):
            sent = storage.read_json(directory / "spool" / "mlflow.sent.json")
        if identity in (record["id"], sent.get("remote_id") if isinstance(sent, dict) else None):
            return directory
    raise UsageError(
        f"no run below {str(Path(root).resolve())!r} has this id, neither as its own nor as MLflow's",
        key="RUN",
        received=identity,
        remedy="call this in the project, or name the run directory",
    )


class Artifact(NamedTuple):
    """A model among the artifacts of a run: the root URI of the artifacts, and the model's path below it."""

    root: str
    path: str

    @property
    def uri(self) -> str:
        """The URI to download."""
        return f"{self.root}/{self.path}" if self.path else self.root


def stores(start: storage.PathLike = ".") -> list[str]:
    """Returns the MLflow stores to search: `MLFLOW_TRACKING_URI`, else the databases around a folder, nearest first.

    A project has its database beside `runs`; earlier versions created it in `runs`.
    """
    given = os.environ.get("MLFLOW_TRACKING_URI")
    if given:
        return [given]
    here = Path(start).absolute()
    files = [folder / name for folder in (here, *here.parents) for name in _DATABASES]
    return [f"sqlite:///{file}" for file in files if file.is_file()]


@contextlib.contextmanager
def fetched(identity: str, path: str = "", start: storage.PathLike = ".") -> Iterator[Found]:
    """Yields the model of a run that MLflow knows; what was fetched is removed after the block.

    Args:
      identity: The run's id.
      path: The artifact that is the model; by default the run's only model.
      start: The folder in which the search for a database starts, upwards.

    Raises:
      UsageError: No store knows the run, the server does not answer, or the run has no model, or more than one.
    """
    uri, client, run = _find_in_stores(identity, stores(start))
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        model = _call_mlflow(uri, lambda: _download(client, run, path, uri, folder))
        metrics = {"mlflow": dict(run.data.metrics)}
        yield Found(model, None, {"id": identity, "metrics": metrics, "backend": run.data.tags.get("backend")})


def _find_in_stores(identity: str, uris: Sequence[str]) -> tuple[str, Any, Any]:
    """Returns the URI of the store that knows a run, its client and the run."""
    for given in uris:
        uri = checked_uri(given)
        prepare_client(uri)
        from mlflow.tracking import MlflowClient

        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        client = MlflowClient(uri)
        if (run := _call_mlflow(uri, lambda client=client: _get_run(client, identity))) is not None:  # type: ignore[misc]
            return uri, client, run
    raise UsageError(
        f"no run below {str(Path.cwd())!r} and none in an MLflow store has this id; searched stores: "
        f"{', '.join(map(without_credentials, uris)) or 'none'}",
        key="RUN",
        received=identity,
        remedy="" if uris else "set MLFLOW_TRACKING_URI, or call this in the project",
    )


def _get_run(client: Any, identity: str) -> Any:
    """Returns a run, or None if the store has none with this id."""
    try:
        return client.get_run(identity)
    except Exception as error:
        if getattr(error, "error_code", "") == "RESOURCE_DOES_NOT_EXIST":
            return None
        raise


def _download(client: Any, run: Any, path: str, uri: str, folder: str) -> Path:
    """Downloads a run's model into a folder; returns its path there."""
    from mlflow.artifacts import download_artifacts

    root = f"runs:/{run.info.run_id}"
    artifact = Artifact(root, path) if path else _only_model(root, list(_models(client, run, uri)))
    place = Path(download_artifacts(artifact_uri=artifact.uri, dst_path=folder, tracking_uri=uri))
    if place.is_file() or (place / _SAVED).is_file():
        return place
    inside = [*place.rglob("*.keras"), *(file.parent for file in place.rglob(_SAVED))]  # by MLflow's own log_model
    if not inside:
        raise UsageError("the artifact is not a .keras file or a SavedModel", key="RUN", received=place.name)
    return inside[0]


def _models(client: Any, run: Any, uri: str) -> Iterator[Artifact]:
    """Yields the models among a run's artifacts, and the models that were logged with it."""
    from mlflow.artifacts import list_artifacts

    pending, searched = [""], 0
    while pending and searched < _MOST_FOLDERS:
        folder, searched = pending.pop(0), searched + 1
        for file in client.list_artifacts(run.info.run_id, folder or None):
            name = file.path.rpartition("/")[2]
            if file.is_dir and name not in _SKIPPED_FOLDERS:
                pending.append(file.path)
            elif name == _SAVED or name.endswith(".keras"):
                yield Artifact(f"runs:/{run.info.run_id}", folder if name == _SAVED else file.path)
    for logged in getattr(run.outputs, "model_outputs", None) or ():
        root = f"models:/{logged.model_id}"
        if any(file.path == "MLmodel" for file in list_artifacts(artifact_uri=root, tracking_uri=uri)):
            yield Artifact(root, "")


def _only_model(run: str, models: list[Artifact]) -> Artifact:
    """Returns the run's only model; `model.keras` is preferred to copies of it in other formats."""
    named = [model for model in models if model.path.rpartition("/")[2] == "model.keras"]
    files = [model for model in models if model.path.endswith(".keras")]
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
    listed = ", ".join(model.uri for model in chosen[:5])
    raise UsageError(f"has {len(chosen)} models", key="RUN", received=run, remedy=f"name one of them: {listed}")


def _call_mlflow(uri: str, call: Callable[[], Result]) -> Result:
    """Calls MLflow; its errors become one line, without credentials."""
    try:
        return call()
    except UsageError:
        raise
    except Exception as error:  # from MLflow, the database or the network
        first: BaseException = error  # the root cause: `[Errno 111] Connection refused`
        while inner := first.__cause__ or first.__context__:
            first = inner
        reason = (without_credentials(str(first)).strip().splitlines() or [type(first).__name__])[0][:300]
        raise UsageError(f"cannot be reached: {reason}", key="MLflow", received=without_credentials(uri)) from error
