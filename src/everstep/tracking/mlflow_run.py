"""The run on an MLflow server or in an MLflow database: one per everstep run, over all attempts.

Everything here can be repeated: MLflow drops a metric point that is the same in name, value, time and step, accepts a
parameter again with the same value, and the run is looked for by its tag before it is created.
"""

import contextlib
import dataclasses
import json
import logging
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.tracking.mlflow_entities import LIMITS, Entity, entities
from everstep.tracking.mlflow_target import Target, local_artifacts, prepare_local, without_credentials
from everstep.tracking.sender import Forgotten, Progress
from everstep.tracking.spool import Record, Spool

logger = logging.getLogger(__name__)

RUN_TAG = "everstep.run_id"
"""The tag that says which everstep run an MLflow run is."""

_STATUSES = {"running": "RUNNING", "finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED"}
_LONGEST_REASON = 300
_TALKATIVE = {"mlflow", "alembic", "sqlalchemy"}


class Unavailable(Exception):
    """The server does not answer, or not as it should; the message fits on a line and holds no secret."""


class MlflowRun:
    """Delivers records to the run on the server, which is created with the first.

    What the server refuses for good goes to `mlflow.refused.jsonl` beside the spool.

    Args:
      target: The server and the run.
      directory: The run directory, where artifacts are.
      spool: Where the records come from.

    Attributes:
      progress: How far they have been delivered, and the run's id on the server.
      points_refused: How many points of the records sent last the server has refused.
    """

    def __init__(self, target: Target, directory: Path, spool: Spool) -> None:
        self.progress = Progress.load(spool.path.with_suffix(".sent.json"), without_credentials(target.uri), spool)
        self._target, self._directory = target, directory
        self._refused = spool.path.with_suffix(".refused.jsonl")
        self._refusals = set(self._refused.read_text("utf-8").splitlines()) if self._refused.exists() else set()
        self._client: Any = None
        self.points_refused = 0

    @property
    def refusals(self) -> int:
        """How many entities the server has refused, over all attempts."""
        return len(self._refusals)

    def send(self, records: Sequence[Record]) -> None:
        """Delivers records, the status last.

        Raises:
          Forgotten: The server does not know the run any more.
          Unavailable: It is not possible now.
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
            raise Unavailable(_brief(error)) from error

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
            return self._client.get_experiment_by_name(name).experiment_id  # somebody was faster

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
        """Deletes an empty run that a request left behind which we had given up and sent again."""
        ours = self._client.get_run(self.progress.remote_id)
        for run in self._with_our_tag(ours.info.experiment_id):
            if run.info.run_id != ours.info.run_id and not run.data.metrics:
                self._client.delete_run(run.info.run_id)

    # ---- its content -----------------------------------------------------------------------------------------------

    def _deliver(self, some: list[Entity]) -> None:
        """Sends entities of one type; where some are refused for good, finds them and sets them aside."""
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
        """Uploads a file; a store for files that does not work must not hold up the numbers."""
        try:
            self._client.log_artifact(self.progress.remote_id, str(self._directory / record["path"]), folder)
        except Exception as error:
            if not self._run_is_active():
                raise
            self._set_aside(record, error)

    def _run_is_active(self) -> bool:
        """Returns whether the server, asked now, knows the run and takes something for it."""
        return self._client.get_run(self.progress.remote_id).info.lifecycle_stage == "active"

    def _set_aside(self, what: Record, error: Exception) -> None:
        self.points_refused += what["type"] == "metrics"
        line = json.dumps({"refused": what, "reason": _brief(error)}, sort_keys=True)
        if line in self._refusals:
            return
        if not self._refusals:
            logger.warning("MLflow refuses %s (%s); what it refuses is in %s", what, _brief(error), self._refused)
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
    """Returns MLflow's name of an error; nothing for another kind of error."""
    return getattr(error, "error_code", "")


def _http_status(error: Exception) -> int | None:
    status = getattr(error, "get_http_status_code", None)
    return status() if status else None


def _brief(error: BaseException) -> str:
    """Returns the reason in a line: what everything else came from, such as `TimeoutError: timed out`."""
    while inner := error.__cause__ or error.__context__:
        error = inner
    lines = without_credentials(str(error)).splitlines() or [""]
    return f"{type(error).__name__}: {lines[0]}"[:_LONGEST_REASON]


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keeps MLflow from writing to standard error on behalf of this thread; what matters is said once, by us."""
    import mlflow  # noqa: F401  it has its handlers from here on

    thread = threading.get_ident()
    handlers = list(logging.getLogger("mlflow").handlers)

    def wanted(record: logging.LogRecord) -> bool:
        return record.thread != thread or record.name.partition(".")[0] not in _TALKATIVE

    for handler in handlers:
        handler.addFilter(wanted)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(wanted)
