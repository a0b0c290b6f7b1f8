"""MLflow, behind a spool: a server that is slow, failing or gone costs training nothing, and loses nothing."""

import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

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
from everstep.tracking.sender import Delivery, Pace, Sender
from everstep.tracking.tracker import Kind, Tracker, plain

logger = logging.getLogger(__name__)

Status = Literal["finished", "failed", "interrupted"]

_SECONDS_TO_CREATE_A_DATABASE = 60.0


class MlflowTracker(Tracker):
    """Records a run in MLflow: one MLflow run over all attempts, each point once.

    Every call only appends to `MODEL_DIR/spool/mlflow.jsonl`; a thread sends from there. What could not be sent when
    the run ends stays there for the next attempt, or for `sync`.

    A number that an earlier attempt recorded for the same step is not recorded again: MLflow forgets nothing, and
    a resumed run computes the same numbers. So where one was changed on purpose (another learning rate, batches left
    out after a NaN), the steps that are run a second time keep their first numbers in MLflow.

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
      uri: The server or database; by default `MLFLOW_TRACKING_URI`, else `mlflow.db` beside the run directory.
      params: The configuration, nested or flat, without secrets. MLflow keeps a parameter for ever: one that a later
        attempt changes becomes the tag `everstep.changed.<name>`.
      tags: What else to know about the run and the attempt; a later attempt's values replace earlier ones.
      artifacts: Small files in the run directory to keep with the run.
      close_seconds: How long `close` waits for the rest to be sent.
      pace: How long the thread waits between requests.

    Raises:
      UsageError: The URI is not one of a server or database, or a package that it needs is missing.
    """

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
        self._directory = Path(model_dir).resolve()
        uri = checked_uri(uri or default_uri(model_dir))
        self._target = Target(uri, run_id, experiment, self._directory.name)
        self._params, self._tags = flattened(params or {}), flattened(tags or {})
        self._artifacts = artifacts
        self._close_seconds, self._pace = close_seconds, pace or Pace()
        self._spool = spool_of(model_dir)
        self._delivery: Delivery | None = None
        self._sender: Sender | None = None
        self._status: Status | None = None

    def start(self, step: int) -> None:
        """Begins an attempt: what the spool still holds, and what the run is, goes to the server from now on.

        An attempt that goes back to an earlier step is the same attempt, on the same run: nothing is to be done.
        """
        if self._sender is not None:
            return
        self._status = None
        prepare_client(self._target.uri)
        self._spool.open()
        self._describe()
        run = MlflowRun(self._target, self._directory, self._spool)
        self._delivery = Delivery(self._spool, run.progress, run)
        self._sender = Sender(self._delivery, f"MLflow at {without_credentials(self._target.uri)}", self._pace)
        self._sender.start()

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Appends a point to the spool; of the machine there may be several at one step."""
        self._spool.metrics(step, plain(logs), kind, once=kind != "system")
        self._wake()

    def flush(self) -> None:
        """Does not wait for the server: what is in the spool is safe from a kill."""
        self._spool.flush()
        self._wake()

    def finish(self, status: Status) -> None:
        """Says how the run ended, before `close`; without it, an exception on its way decides."""
        self._status = status

    def close(self) -> None:
        """Waits a few seconds for the rest to be sent, and says what is left.

        A database in a file takes longer to be created, but cannot be out of reach: a run that finished waits for it.
        """
        if self._sender is None or self._delivery is None:
            return
        sender, self._sender = self._sender, None
        status = self._status or _verdict()
        self._spool.append({"type": "status", "status": status})
        self._spool.close()
        patient = status == "finished" and is_local(self._target.uri)
        sender.close(_SECONDS_TO_CREATE_A_DATABASE if patient else self._close_seconds)
        if not self._delivery.done():
            logger.warning(
                "%d points and the end of the run wait for MLflow in %s; the next attempt sends them, or: "
                "everstep runs sync %s",
                self._delivery.waiting(),
                self._spool.path,
                self._directory,
            )

    def _describe(self) -> None:
        """Records what the run is, and where it is meant to go."""
        self._spool.append(self._target.record())
        changed = self._spool.params(self._params)
        tags = self._tags | {f"everstep.changed.{name}": value for name, value in changed.items()}
        if tags:
            self._spool.append({"type": "tags", "values": tags})
        for path in self._artifacts:
            self._spool.append({"type": "artifact", "path": path})
        self._spool.append({"type": "status", "status": "running"})

    def _wake(self) -> None:
        if self._sender is not None:
            self._sender.wake()


def _verdict() -> Status:
    """Returns how a run ends that is closed now."""
    error = sys.exception()
    if error is None:
        return "finished"
    return "interrupted" if isinstance(error, KeyboardInterrupt | SystemExit) else "failed"
