"""Which MLflow server, which run on it; and the client's settings for one that may be gone."""

import dataclasses
import importlib.util
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from everstep import redaction, storage
from everstep.errors import UsageError, missing_extra
from everstep.tracking.mlflow_database import create_database
from everstep.tracking.spool import Record

logger = logging.getLogger(__name__)

_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_USER = re.compile(r"(?<=://)[^/\s'\"]+@")
_CONNECTION = re.compile(r"([?&]odbc_connect=)[^&\s'\"]+")
_SQLITE = "sqlite:///"

# One try is short: it is the sender that tries again. Nobody waits for MLflow's own statistics, and standard output
# belongs to the program.
_CLIENT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclasses.dataclass(frozen=True)
class Target:
    """Where a run is recorded.

    Attributes:
      uri: The server or database; it may hold credentials.
      run_id: The id of the everstep run.
      experiment: The MLflow experiment.
      name: What the MLflow run is called.
    """

    uri: str
    run_id: str
    experiment: str
    name: str

    def record(self) -> Record:
        """Returns it as a record of the spool, without credentials."""
        return {"type": "target", **dataclasses.asdict(self), "uri": without_credentials(self.uri)}

    @classmethod
    def recorded(cls, records: Iterable[Record], uri: str | None = None) -> "Target | None":
        """Returns the last one in a spool, or the same run on another server, `uri`."""
        last = None
        for record in records:
            last = record if record["type"] == "target" else last
        if last is None:
            return None
        given = uri or _with_credentials(last["uri"])
        return cls(checked_uri(given), last["run_id"], last["experiment"], last["name"])


def _with_credentials(recorded: str) -> str:
    """Returns an address with the credentials that `MLFLOW_TRACKING_URI` has, where that is the same place."""
    given = os.environ.get("MLFLOW_TRACKING_URI", "")
    redaction.learn_text(given)
    return given if without_credentials(given) == recorded else recorded


def default_uri(model_dir: storage.PathLike) -> str:
    """Returns `MLFLOW_TRACKING_URI` where it is set, else the database of the folder that the run belongs to."""
    beside = Path(model_dir).resolve().parent
    return folder_uri(beside.parent if beside.name == "runs" else beside)


def folder_uri(folder: Path) -> str:
    """Returns `MLFLOW_TRACKING_URI` where it is set, else the database of a folder with runs."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{local_store(folder)}"


def local_store(folder: Path) -> Path:
    """Returns the database of a folder with runs in it, or in its `runs`: `mlflow.db`, as for plain `mlflow ui` there.

    Where only `runs/mlflow.db` is there, as earlier versions made it, it is that one. Whether it exists is another
    matter: who tracks a run makes it, who looks does not.
    """
    former = folder / "runs" / "mlflow.db"
    return former if former.is_file() and not (folder / "mlflow.db").is_file() else folder / "mlflow.db"


def checked_uri(uri: str) -> str:
    """Returns the URI of a server or database with its path made absolute.

    Raises:
      UsageError: MLflow does not keep runs there, or what it needs for that is not installed.
    """
    redaction.learn_text(uri)
    if urlsplit(uri).scheme in ("", "file") and uri != "databricks":
        raise UsageError(
            f"MLflow keeps no runs in {without_credentials(uri)!r}: give the address of a server, such as "
            "http://localhost:5000, or a database, such as sqlite:///mlflow.db"
        )
    if importlib.util.find_spec("mlflow") is None:
        raise missing_extra("mlflow", "mlflow", "tracking with MLflow")
    if _is_database(uri) and not all(map(importlib.util.find_spec, ("sqlalchemy", "alembic"))):
        raise missing_extra("mlflow", "ui", f"an MLflow database ({without_credentials(uri)})")
    return f"{_SQLITE}{_database(uri).resolve()}" if is_local(uri) else uri


def is_local(uri: str) -> bool:
    """Returns whether it is a database in a file: nothing that a network can keep from us."""
    return uri.startswith(_SQLITE)


def is_there(uri: str) -> bool:
    """Returns whether there is something to look at: a database in a file may not have been made yet."""
    return not is_local(uri) or _database(uri).is_file()


def local_artifacts(uri: str) -> str | None:
    """Returns where files of a run go: beside a local database; a server decides by itself."""
    return (_database(uri).parent / "mlartifacts").as_uri() if is_local(uri) else None


def prepare_local(uri: str) -> None:
    """Makes a local database, if there is none yet, where it can be written: MLflow would try for minutes.

    Raises:
      UsageError: It cannot.
    """
    if is_local(uri):
        storage.prepare_directory(_database(uri).parent)
        create_database(_database(uri))


def _is_database(uri: str) -> bool:
    return urlsplit(uri).scheme.partition("+")[0] in _DATABASES


def _database(uri: str) -> Path:
    return Path(uri.removeprefix(_SQLITE))


def without_credentials(text: str) -> str:
    """Returns a text, such as a URI or an error about one, as logs and files may have it."""
    return redaction.text(_CONNECTION.sub(r"\1***", _USER.sub("", text)))


def prepare_client(uri: str) -> None:
    """Gives MLflow's client the settings it reads from the environment (those that are set stay), and imports it.

    An import in a background thread can make an import in another thread fail, which then finds modules half made.
    So it is done here, on the thread of whoever asks, and the sender finds everything there.
    """
    for name, value in _CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        _import_client(uri)
    except Exception as error:  # a broken installation; the sender will meet it again, and say so
        logger.debug("MLflow cannot be imported: %s", error)


def _import_client(uri: str) -> None:
    import mlflow.entities
    import mlflow.tracking
    from mlflow.tracking.request_header.registry import resolve_request_headers

    resolve_request_headers()  # imports whatever it looks at to find out where it runs
    if _is_database(uri):
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401
