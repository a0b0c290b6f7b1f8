"""Sending what a run that has ended could not send: `everstep runs sync DIR`."""

import dataclasses
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.tracking.mlflow_run import MlflowRun, spool_of
from everstep.tracking.mlflow_target import Target, prepare_client, without_credentials
from everstep.tracking.sender import Delivery
from everstep.tracking.spool import point_count


@dataclasses.dataclass(frozen=True)
class SyncResult:
    """What `sync` has done.

    Attributes:
      server: Where the run is recorded, without credentials.
      remote_id: The id of the MLflow run; None if it could not be created.
      sent: How many points the server took now.
      waiting: How many still wait.
      refused: How many entries the server refuses for good, over all attempts; `mlflow.refused.jsonl` has them.
      problem: Why points still wait; None when all were sent.
    """

    server: str
    remote_id: str | None
    sent: int
    waiting: int
    refused: int
    problem: str | None


def sync(model_dir: storage.PathLike, uri: str | None = None) -> SyncResult:
    """Sends what waits in the spool of a run; done twice, it sends nothing twice.

    Args:
      model_dir: The run directory.
      uri: The server; by default the one that the run used, with the credentials that `MLFLOW_TRACKING_URI` has for it.

    Raises:
      UsageError: The run was not tracked with MLflow, a process that still trains sends its points, or a package is
        missing.
    """
    directory, spool = Path(model_dir), spool_of(model_dir)
    target = Target.recorded(spool.records(), uri)
    if target is None:
        raise UsageError(f"{str(directory)!r} was not tracked with MLflow: there are no records in {spool.path}")
    prepare_client(target.uri)
    run = MlflowRun(target, directory, spool)
    delivery = Delivery(spool, run.progress, run)
    if not delivery.take_over():
        raise UsageError(f"{str(directory)!r} is in use: the process that trains there sends its points by itself")
    try:
        sent, problem = _drain(delivery, run)
    finally:
        delivery.hand_over()
    return SyncResult(
        without_credentials(target.uri), run.progress.remote_id, sent, delivery.waiting(), run.refusals, problem
    )


def _drain(delivery: Delivery, run: MlflowRun) -> tuple[int, str | None]:
    """Delivers all there is; returns how many points were taken, and why not all were sent."""
    sent = 0
    try:
        while (batch := delivery.step()) is not None:
            sent += point_count(batch.records) - run.points_refused
    except Exception as error:  # a server can fail in any way
        return sent, str(error)
    return sent, None
