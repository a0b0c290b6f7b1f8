"""MLflow, behind a spool: one MLflow run per everstep run, over all attempts.

Everything that is sent can be repeated: MLflow drops a metric point that is the same in name, value, time and step,
accepts a parameter again with the same value, and the run is searched by its tag before it is created.

What cannot be sent stays in the spool; the sender of `delivery.py` tries again until the server answers.
"""

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import logging
import os
import posixpath
import re
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from everstep import redaction, storage
from everstep.errors import UsageError, missing_extra
from everstep.tracking.delivery import Delivery, DeliveryProgress, Forgotten, SendDelays
from everstep.tracking.spool import Record, Spool, flattened, last_target, named_values
from everstep.tracking.spooled_tracker import SpooledTracker, Status
from everstep.tracking.sweep_tags import sweep_tags, trial_name

logger = logging.getLogger(__name__)

_LEFTOVER = ".everstep-mlflow-"
_LEFTOVER_SECONDS = 600.0  # more than it takes to create one


def create_database(database: Path) -> None:
    """Creates a database with all tables, if there is no file of that name; safe against other processes.

    MLflow creates its tables one by one, and SQLite keeps those that exist. After a kill in between, the file is
    unusable: MLflow finds tables that it wants to create. So it is created under another name, then renamed.
    """
    if database.exists():
        return
    _clear_away(database)
    temporary = database.with_name(f"{_LEFTOVER}{uuid.uuid4().hex[:12]}-{database.name}")
    try:
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

        store = SqlAlchemyStore(f"sqlite:///{temporary}", (database.parent / "mlartifacts").as_uri())
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.link(temporary, database)
        store.engine.dispose()
    finally:
        temporary.unlink(missing_ok=True)


def _clear_away(database: Path) -> None:
    """Removes what killed processes left; not what another process may still be writing."""
    for entry in database.parent.glob(f"{_LEFTOVER}*-{database.name}*"):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > _LEFTOVER_SECONDS:
                entry.unlink()


EntityType = Literal["metrics", "params", "tags"]
LIMITS: dict[EntityType, int] = {"metrics": 1000, "params": 100, "tags": 100}
"""How many of each one request may hold."""

_KEY_LENGTH = 250
_VALUE_LENGTHS = {"params": 6000, "tags": 8000}
_NOT_IN_KEYS = re.compile(r"[^\w./ :-]")


@dataclasses.dataclass(frozen=True)
class Entity:
    """One metric point, parameter or tag.

    Attributes:
      type: Which of them.
      key: Its name on the server.
      value: A number for a metric, text for the others.
      time: Milliseconds since the epoch.
      step: The step of a metric.
    """

    type: EntityType
    key: str
    value: float | str
    time: int
    step: int = 0


def entities(record: Record) -> list[Entity]:
    """Returns what a record holds; nothing for one of another type."""
    if record["type"] not in LIMITS:
        return []
    keys = _keys(list(named_values(record)))
    values = (_entity_value(record["type"], value) for value in record["values"].values())
    make = dataclasses.replace
    blank = Entity(record["type"], "", "", record["time"], record.get("step", 0))
    return [make(blank, key=key, value=value) for key, value in zip(keys, values, strict=True)]


def _keys(names: list[str]) -> list[str]:
    """Returns a valid key per name; names that map to the same key get a hash appended."""
    keys: list[str] = []
    for name in names:
        key = _key(name)
        keys.append(_marked(key, name) if key in keys or len(key) > _KEY_LENGTH else key)
    return keys


def _key(name: str) -> str:
    """Returns the name with what MLflow rejects replaced: special characters, and what a path would normalize away."""
    parts = _NOT_IN_KEYS.sub("_", name).split("/")
    return "/".join(part if posixpath.normpath(part or ".") != "." and part != ".." else "_" for part in parts)


def _marked(key: str, name: str) -> str:
    mark = hashlib.sha256(name.encode("utf-8")).hexdigest()[:8]
    return f"{key[: _KEY_LENGTH - 9]}_{mark}"


def _entity_value(type_: EntityType, value: float | str) -> float | str:
    if type_ == "metrics":
        return float(value)
    text, longest = str(value), _VALUE_LENGTHS[type_]
    if len(text) <= longest:
        return text
    note = f"… (cut: {len(text)} characters)"
    return text[: longest - len(note)] + note


_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
_USER = re.compile(r"(?<=://)[^/\s'\"]+@")
_CONNECTION = re.compile(r"([?&]odbc_connect=)[^&\s'\"]+")
_SQLITE = "sqlite:///"

# One attempt is short: the sender retries. MLflow's telemetry is off, and standard output belongs to the program.
_CLIENT_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


@dataclasses.dataclass(frozen=True)
class MlflowTarget:
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
    def recorded(cls, records: Iterable[Record], uri: str | None = None) -> "MlflowTarget | None":
        """Returns the last one in a spool, or the same run on another server, `uri`."""
        if (last := last_target(records)) is None:
            return None
        given = uri or _with_credentials(last["uri"])
        return cls(checked_uri(given), last["run_id"], last["experiment"], last["name"])


def _with_credentials(recorded: str) -> str:
    """Returns an address with the credentials of `MLFLOW_TRACKING_URI`, if that is the same server."""
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

    If only `runs/mlflow.db` exists, as earlier versions created it, it is that one. The file may not exist yet:
    tracking a run creates it, reading does not.
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
            "is not an address that MLflow can keep runs at",
            key="trainer.tracking.mlflow_uri",
            received=without_credentials(uri),
            remedy="use a server, such as http://localhost:5000, or a database, such as sqlite:///mlflow.db",
        )
    if importlib.util.find_spec("mlflow") is None:
        raise missing_extra("mlflow", "mlflow", "tracking with MLflow")
    if _is_database(uri) and not all(map(importlib.util.find_spec, ("sqlalchemy", "alembic"))):
        raise missing_extra("mlflow", "ui", f"an MLflow database ({without_credentials(uri)})")
    return f"{_SQLITE}{_database(uri).resolve()}" if is_local(uri) else uri


def is_local(uri: str) -> bool:
    """Returns whether it is a database in a file, which no network failure can make unreachable."""
    return uri.startswith(_SQLITE)


def is_there(uri: str) -> bool:
    """Returns whether it exists: a database in a file may not have been created yet."""
    return not is_local(uri) or _database(uri).is_file()


def local_artifacts(uri: str) -> str | None:
    """Returns where files of a run go: beside a local database; None for a server, which decides itself."""
    return (_database(uri).parent / "mlartifacts").as_uri() if is_local(uri) else None


def prepare_local(uri: str) -> None:
    """Creates a local database, if it does not exist; MLflow would retry for minutes if it cannot be written.

    Raises:
      UsageError: It cannot be written.
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
    """Sets the environment variables that MLflow's client reads (those that are set stay), and imports it.

    An import in a background thread can make an import in another thread fail, which finds modules half imported. So
    the client is imported here, on the caller's thread, before the sender needs it.
    """
    for name, value in _CLIENT_SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        _import_client(uri)
    except Exception as error:  # a broken installation; the sender meets it again, and logs it
        logger.debug("MLflow cannot be imported: %s", error)


def _import_client(uri: str) -> None:
    import mlflow.entities
    import mlflow.tracking
    from mlflow.tracking.request_header.registry import resolve_request_headers

    resolve_request_headers()  # imports the modules with which it detects its environment
    if _is_database(uri):
        import mlflow.store.tracking.sqlalchemy_store  # noqa: F401


@dataclasses.dataclass(frozen=True)
class MlflowNames:
    """What a run and its numbers are called on MLflow. Each entry point fills one, and nothing else chooses names.

    The metrics of a step keep the names that the loop gives them: `loss`, `val_loss`, `validation_loss`.

    Attributes:
      experiment: The MLflow experiment; created if it is missing.
      run: The MLflow run; empty for the name of the run directory.
      params: The configuration, nested or flat; its secrets are not sent. MLflow keeps a parameter for ever: one that a
        later attempt changes becomes the tag `everstep.changed.<name>`.
      tags: Facts about the run and the attempt; a later attempt's values replace earlier ones.
      results: The names of an evaluation's metrics, by what computed them: `{"eval_funcs": "{split}_{name}"}`.
      short: Metrics that have a shorter name there: `{"accuracy": "acc"}`.
    """

    experiment: str
    run: str = ""
    params: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    results: Mapping[str, str] = dataclasses.field(default_factory=dict)
    short: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def named(self, evaluation: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, float]:
        """Returns the metrics of an evaluation by their names on MLflow.

        Args:
          evaluation: Metrics by split, by what computed them and by name.
        """
        return {
            self.results[source].format(split=split, name=self.short.get(name, name)): value
            for split, sources in evaluation.items()
            for source, metrics in sources.items()
            for name, value in metrics.items()
        }


RUN_TAG = "everstep.run_id"
"""The tag with the id of the everstep run."""

_STATUSES = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_LONGEST_REASON = 300
_NOISY = {"mlflow", "alembic", "sqlalchemy"}


class MlflowUnavailable(Exception):
    """The server does not answer, or fails; the message fits on a line and holds no secret."""


class MlflowRun:
    """Delivers records to the run on the server, which is created with the first.

    What the server rejects for good goes to `mlflow.refused.jsonl` beside the spool.

    Args:
      target: The server and the run.
      directory: The run directory, where artifacts are.
      spool: Where the records come from.

    Attributes:
      progress: How far the spool is delivered, and the run's id on the server.
      points_refused: How many points of the records sent last the server rejected.
    """

    def __init__(self, target: MlflowTarget, directory: Path, spool: Spool) -> None:
        self.progress = DeliveryProgress.load(
            spool.path.with_suffix(".sent.json"), without_credentials(target.uri), spool
        )
        self._target, self._directory = target, directory
        self._refused = spool.path.with_suffix(".refused.jsonl")
        self._refusals = set(self._refused.read_text("utf-8").splitlines()) if self._refused.exists() else set()
        self._client: Any = None
        self.points_refused = 0

    @property
    def refusals(self) -> int:
        """How many entities the server has rejected, over all attempts."""
        return len(self._refusals)

    def send(self, records: Sequence[Record]) -> None:
        """Delivers records, the status last.

        Raises:
          Forgotten: The server does not know the run any more.
          MlflowUnavailable: The server cannot take them now.
        """
        self.points_refused = 0
        if not records:
            return
        try:
            with _quiet():
                self._send(records)
        except Exception as error:
            if self.progress.remote_id and _code(error) == "RESOURCE_DOES_NOT_EXIST":
                raise Forgotten from error
            raise MlflowUnavailable(_brief(error)) from error

    def _send(self, records: Sequence[Record]) -> None:
        if self._client is None:
            self._client = _new_client(self._target.uri)
        if self.progress.remote_id is None:
            self.progress.remote_id = self._find_or_create(records[0]["time"])
            self.progress.save()
        found = [entity for record in records for entity in entities(record)]
        for type_, limit in LIMITS.items():
            some = [entity for entity in found if entity.type == type_]
            for start in range(0, len(some), limit):
                self._deliver(some[start : start + limit])
        for record in records:
            if record["type"] == "artifact":
                self._upload(record)
            elif record["type"] == "media":
                for path in record["files"]:
                    self._upload({**record, "path": path}, str(Path(path).parent))
        if statuses := [record for record in records if record["type"] == "status"]:
            self._set_status(statuses[-1])

    # ---- the run ---------------------------------------------------------------------------------------------------

    def _find_or_create(self, time: int) -> str:
        experiment = self._experiment()
        if found := self._with_our_tag(experiment):
            return found[0].info.run_id
        name, tags = self._target.name, {RUN_TAG: self._target.run_id}
        return self._client.create_run(experiment, start_time=time, tags=tags, run_name=name).info.run_id

    def _experiment(self) -> str:
        name = self._target.experiment
        found = self._client.get_experiment_by_name(name)
        if found is not None:
            return found.experiment_id
        try:
            return self._client.create_experiment(name, artifact_location=local_artifacts(self._target.uri))
        except Exception as error:
            if _code(error) != "RESOURCE_ALREADY_EXISTS":
                raise
            return self._client.get_experiment_by_name(name).experiment_id  # another process was faster

    def _with_our_tag(self, experiment: str) -> list[Any]:
        """Returns the runs that are ours, the one to use first."""
        runs = self._client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{self._target.run_id}'")
        return sorted(runs, key=lambda run: (run.info.start_time, run.info.run_id))

    def _set_status(self, record: Record) -> None:
        status, run_id = _STATUSES[record["status"]], self.progress.remote_id
        if status == "RUNNING":
            self._client.update_run(run_id, status)
        else:
            self._remove_doubles()
            self._client.set_terminated(run_id, status, end_time=record["time"])

    def _remove_doubles(self) -> None:
        """Deletes an empty run that a request created after it had timed out here and was sent again."""
        ours = self._client.get_run(self.progress.remote_id)
        for run in self._with_our_tag(ours.info.experiment_id):
            if run.info.run_id != ours.info.run_id and not run.data.metrics:
                self._client.delete_run(run.info.run_id)

    # ---- its content -----------------------------------------------------------------------------------------------

    def _deliver(self, some: list[Entity]) -> None:
        """Sends entities of one type; those that are rejected for good are found by halving, and set aside."""
        try:
            self._client.log_batch(self.progress.remote_id, **{some[0].type: [_native(one) for one in some]})
        except Exception as error:
            if _http_status(error) != 400 or not self._run_is_active():
                raise
            if len(some) == 1:
                self._set_aside(dataclasses.asdict(some[0]), error)
                return
            middle = len(some) // 2
            self._deliver(some[:middle])
            self._deliver(some[middle:])

    def _upload(self, record: Record, folder: str | None = None) -> None:
        """Uploads a file; an artifact store that fails must not hold up the metrics."""
        try:
            self._client.log_artifact(self.progress.remote_id, str(self._directory / record["path"]), folder)
        except Exception as error:
            if not self._run_is_active():
                raise
            self._set_aside(record, error)

    def _run_is_active(self) -> bool:
        """Returns whether the server knows the run and accepts data for it now."""
        return self._client.get_run(self.progress.remote_id).info.lifecycle_stage == "active"

    def _set_aside(self, what: Record, error: Exception) -> None:
        self.points_refused += what["type"] == "metrics"
        line = json.dumps({"refused": what, "reason": _brief(error)}, sort_keys=True)
        if line in self._refusals:
            return
        if not self._refusals:
            logger.warning("MLflow rejects %s (%s); what it rejects is in %s", what, _brief(error), self._refused)
        self._refusals.add(line)
        with open(self._refused, "a", encoding="utf-8") as file:
            file.write(line + "\n")


def spool_of(model_dir: storage.PathLike) -> Spool:
    """Returns the spool of a run directory for MLflow."""
    return Spool(Path(model_dir).resolve() / "spool", "mlflow")


def _new_client(uri: str) -> Any:
    from mlflow.tracking import MlflowClient

    prepare_local(uri)
    return MlflowClient(uri)


def _native(entity: Entity) -> Any:
    from mlflow.entities import Metric, Param, RunTag

    if entity.type == "metrics":
        return Metric(entity.key, entity.value, entity.time, entity.step)
    return {"params": Param, "tags": RunTag}[entity.type](entity.key, entity.value)


def _code(error: Exception) -> str:
    """Returns MLflow's code of an error; empty for another kind of error."""
    return getattr(error, "error_code", "")


def _http_status(error: Exception) -> int | None:
    status = getattr(error, "get_http_status_code", None)
    return status() if status else None


def _brief(error: BaseException) -> str:
    """Returns the innermost cause in a line, such as `TimeoutError: timed out`."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:_LONGEST_REASON]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps MLflow from writing to standard error on behalf of this thread; the sender logs what matters."""
    import mlflow  # noqa: F401  it installs its handlers

    thread = threading.get_ident()
    handlers = list(logging.getLogger("mlflow").handlers)

    def wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.name.partition(".")[0] not in _NOISY

    for handler in handlers:
        handler.addFilter(wanted)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(wanted)


_SECONDS_TO_CREATE_A_DATABASE = 60.0
_SECONDS_TO_CREATE_A_RUN = 10.0  # on a server: as long as one request may take


class MlflowTracker(SpooledTracker):
    """Records a run in MLflow: one MLflow run over all attempts, each point once.

    Example:
      names = MlflowNames("mnist/mlp", params=config.as_dict(), tags={"backend": "jax"})
      tracker = MlflowTracker("runs/a", run.id, names)
      tracker.start(0)
      tracker.log(100, {"loss": 0.3}, "train")
      tracker.finish("finished")
      tracker.close()

    Args:
      model_dir: The run directory.
      run_id: The run's id, the same in all attempts.
      names: What the run is called on MLflow, with its parameters and tags.
      uri: The server or database; by default `MLFLOW_TRACKING_URI`, else `mlflow.db` beside the run
        directory, or, where that is in `runs`, beside `runs`.
      artifacts: Small files in the run directory to keep with the run.
      close_seconds: How long `close` waits for the rest to be sent.
      delays: How long the thread waits between requests.

    Raises:
      UsageError: The URI is not one of a server or database, or a package that it needs is missing.
    """

    service = "MLflow"

    def __init__(
        self,
        model_dir: storage.PathLike,
        run_id: str,
        names: MlflowNames,
        uri: str | None = None,
        *,
        artifacts: Sequence[str] = (),
        close_seconds: float = 5.0,
        delays: SendDelays | None = None,
    ) -> None:
        super().__init__(model_dir, spool_of(model_dir), artifacts, close_seconds, delays)
        uri = checked_uri(uri or default_uri(model_dir))
        self._target = MlflowTarget(uri, run_id, names.experiment, trial_name() or names.run or self._directory.name)
        self._params, self._tags = flattened(redaction.tree(names.params)), flattened(names.tags)
        self._progress: DeliveryProgress | None = None

    def describe(self, names: MlflowNames) -> None:
        """Records parameters and tags as they are known now; a parameter is recorded once."""
        self._params, self._tags = flattened(redaction.tree(names.params)), flattened(names.tags)
        self._describe_run()
        self._wake()

    def remote_id(self) -> str | None:
        """Returns the run's id on the server; waits until the sender has created it, and returns None if it cannot.

        What is recorded so far is sent before: a parameter that is logged twice at the same time fails on either side.
        """
        progress, recorded = self._progress, self._spool.path.stat().st_size if self._spool.path.is_file() else 0
        is_file = is_local(self._target.uri)
        end = time.monotonic() + (_SECONDS_TO_CREATE_A_DATABASE if is_file else _SECONDS_TO_CREATE_A_RUN)
        while progress is not None and time.monotonic() < end:
            if progress.remote_id is not None and progress.offset >= recorded:
                break
            time.sleep(0.02)
        return None if progress is None else progress.remote_id

    def _prepare(self) -> None:
        prepare_client(self._target.uri)

    def _target_record(self) -> Record:
        return self._target.record()

    def _describe_run(self) -> None:
        changed = self._spool.params(self._params)
        tags = self._tags | sweep_tags() | {f"everstep.changed.{name}": value for name, value in changed.items()}
        if tags:
            self._spool.append({"type": "tags", "values": tags})

    def _connected(self) -> Delivery:
        run = MlflowRun(self._target, self._directory, self._spool)
        self._progress = run.progress
        return Delivery(self._spool, run.progress, run)

    def _label(self) -> str:
        return f"MLflow at {without_credentials(self._target.uri)}"

    def _patience(self, status: Status) -> float:
        """A database in a file takes longer to create, but is always reachable: a finished run waits for it."""
        patient = status == "finished" and is_local(self._target.uri)
        return _SECONDS_TO_CREATE_A_DATABASE if patient else self._close_seconds
