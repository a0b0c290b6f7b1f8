"""Models that MLflow keeps: found by the id of a run, in a database or on a server, and fetched into a folder."""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from everstep import storage
from everstep.errors import UsageError
from everstep.inference.finding import Found
from everstep.run.record import Record
from everstep.tracking.mlflow_target import checked_uri, prepare_client, without_credentials

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
    uri, client, run = _found(identity, stores(start))
    with tempfile.TemporaryDirectory(prefix="everstep-") as folder:
        model = _asked(uri, lambda: _fetch(client, run, path, uri, folder))
        record = {
            "id": identity,
            "metrics": {"mlflow": dict(run.data.metrics)},
            "backend": run.data.tags.get("backend"),
        }
        yield Found(model, None, record)


def _record(run: Any) -> Record:
    """Returns what MLflow knows of a run that its record would say, too."""
    metrics, tags = dict(run.data.metrics), run.data.tags
    return {"id": run.info.run_id, "metrics": {"mlflow": metrics}, "backend": tags.get("backend")}


def _found(identity: str, uris: Sequence[str]) -> tuple[str, Any, Any]:
    """Returns which store knows a run, its client and the run."""
    for given in uris:
        uri = checked_uri(given)
        prepare_client(uri)
        client = _client(uri)
        if (run := _asked(uri, lambda client=client: _run(client, identity))) is not None:  # type: ignore[misc]
            return uri, client, run
    asked = ", ".join(map(without_credentials, uris)) or "none: set MLFLOW_TRACKING_URI, or call this in the project"
    raise UsageError(
        f"there is no run {identity!r} below {str(Path.cwd())!r}, nor does an MLflow store know it; asked: {asked}"
    )


def _client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    return MlflowClient(uri)


def _run(client: Any, identity: str) -> Any:
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
        raise UsageError(f"the artifact {path.name!r} is no model: expected a .keras file or a SavedModel")
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
        raise UsageError(f"{run} has no model among its artifacts (.keras or a SavedModel): name its run directory")
    listed = ", ".join(f"{kept.uri}" for kept in chosen[:5])
    raise UsageError(f"{run} has {len(chosen)} models, name one of them: {listed}")


def _asked(uri: str, call: Callable[[], Result]) -> Result:
    """Asks MLflow; what goes wrong there is told in a line, without credentials."""
    try:
        return call()
    except UsageError:
        raise
    except Exception as error:  # of MLflow, of the database or of the network
        raise UsageError(f"MLflow at {without_credentials(uri)} cannot be asked: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    """Returns what everything else came from, in a line: `[Errno 111] Connection refused`."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    return (without_credentials(str(error)).strip().splitlines() or [type(error).__name__])[0][:300]
