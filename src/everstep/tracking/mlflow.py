"""MLflow, behind a spool."""

from collections.abc import Mapping, Sequence
from typing import Any

from everstep import storage
from everstep.tracking.mlflow_entities import flattened
from everstep.tracking.mlflow_run import MlflowRun, spool_of
from everstep.tracking.mlflow_target import (
    Target,
    checked_uri,
    default_uri,
    is_local,
    prepare_client,
    without_credentials,
)
from everstep.tracking.sender import Delivery, Pace
from everstep.tracking.spool import Record
from everstep.tracking.spooled import SpooledTracker, Status

_SECONDS_TO_CREATE_A_DATABASE = 60.0


class MlflowTracker(SpooledTracker):
    """Records a run in MLflow: one MLflow run over all attempts, each point once.

    Example:
      tracker = MlflowTracker("runs/a", run.id, "mnist/mlp", params=config.as_dict(), tags={"backend": "jax"})
      tracker.start(0)
      tracker.log(100, {"loss": 0.3}, "train")
      tracker.finish("finished")
      tracker.close()

    Args:
      model_dir: The run directory.
      run_id: The run's id, the same in all attempts.
      experiment: The MLflow experiment; created if it is missing.
      uri: The server or database; by default `MLFLOW_TRACKING_URI`, else `mlflow.db` beside the run
        directory, or, where that is in `runs`, beside `runs`.
      params: The configuration, nested or flat, without secrets. MLflow keeps a parameter for ever: one that a later
        attempt changes becomes the tag `everstep.changed.<name>`.
      tags: What else to know about the run and the attempt; a later attempt's values replace earlier ones.
      artifacts: Small files in the run directory to keep with the run.
      close_seconds: How long `close` waits for the rest to be sent.
      pace: How long the thread waits between requests.

    Raises:
      UsageError: The URI is not one of a server or database, or a package that it needs is missing.
    """

    service = "MLflow"

    def __init__(
        self,
        model_dir: storage.PathLike,
        run_id: str,
        experiment: str,
        uri: str | None = None,
        *,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        artifacts: Sequence[str] = (),
        close_seconds: float = 5.0,
        pace: Pace | None = None,
    ) -> None:
        super().__init__(model_dir, spool_of(model_dir), artifacts, close_seconds, pace)
        uri = checked_uri(uri or default_uri(model_dir))
        self._target = Target(uri, run_id, experiment, self._directory.name)
        self._params, self._tags = flattened(params or {}), flattened(tags or {})

    def _prepare(self) -> None:
        prepare_client(self._target.uri)

    def _target_record(self) -> Record:
        return self._target.record()

    def _describe_run(self) -> None:
        changed = self._spool.params(self._params)
        tags = self._tags | {f"everstep.changed.{name}": value for name, value in changed.items()}
        if tags:
            self._spool.append({"type": "tags", "values": tags})

    def _connected(self) -> Delivery:
        run = MlflowRun(self._target, self._directory, self._spool)
        return Delivery(self._spool, run.progress, run)

    def _label(self) -> str:
        return f"MLflow at {without_credentials(self._target.uri)}"

    def _patience(self, status: Status) -> float:
        """A database in a file takes longer to be created, but cannot be out of reach: a run that finished waits."""
        patient = status == "finished" and is_local(self._target.uri)
        return _SECONDS_TO_CREATE_A_DATABASE if patient else self._close_seconds
