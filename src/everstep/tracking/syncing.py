"""Sending what a run that has ended could not send: `everstep runs sync DIR`."""

import dataclasses
from pathlib import Path
from typing import Protocol

from everstep import storage
from everstep.errors import UsageError
from everstep.tracking import wandb
from everstep.tracking.delivery import Delivery, Destination
from everstep.tracking.mlflow import MlflowRun, MlflowTarget, prepare_client, spool_of, without_credentials
from everstep.tracking.spool import point_count
from everstep.tracking.wandb import WandbRun, WandbTarget, require_package

_SECONDS_TO_SEND = 600.0


@dataclasses.dataclass(frozen=True)
class SyncResult:
    """What `sync` has done.

    Attributes:
      server: Where the run is recorded, without credentials.
      remote_id: The id of the run there; None if it could not be created.
      sent: How many points the server accepted now.
      waiting: How many are still waiting.
      refused: How many entries the server rejects for good, over all attempts; `mlflow.refused.jsonl` has them.
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
    target = MlflowTarget.recorded(spool.records(), uri)
    if target is None:
        raise UsageError(
            f"was not tracked with MLflow: {spool.path} has no records", key="DIR", received=str(directory)
        )
    prepare_client(target.uri)
    run = MlflowRun(target, directory, spool)
    sent, waiting, problem = _deliver(directory, Delivery(spool, run.progress, run), run)
    server = without_credentials(target.uri)
    return SyncResult(server, run.progress.remote_id, sent, waiting, run.refusals, problem)


def sync_wandb(model_dir: storage.PathLike) -> SyncResult:
    """Sends Weights & Biases what it has not received of a run, including one that was kept in files.

    Raises:
      UsageError: The run was not tracked with W&B, a process that still trains sends its points, or the package is
        missing.
    """
    directory, spool = Path(model_dir).resolve(), wandb.spool_of(model_dir)
    target = WandbTarget.recorded(spool.records())
    if target is None:
        raise UsageError(f"was not tracked with W&B: {spool.path} is empty", key="DIR", received=str(model_dir))
    require_package()
    run = WandbRun(target, directory, spool, _SECONDS_TO_SEND, fallback=False)
    try:
        sent, waiting, problem = _deliver(Path(model_dir), Delivery(spool, run.progress, run), run)
    finally:
        run.end()
    return SyncResult(f"W&B ({target.server})", run.progress.remote_id, sent, waiting, 0, problem)


SYNCS = ((spool_of, sync), (wandb.spool_of, sync_wandb))
"""For each server, what returns its spool of a run directory, and what sends it."""


def sync_all(model_dir: storage.PathLike) -> list[SyncResult]:
    """Sends every server that a run is tracked on what it has not received.

    Raises:
      UsageError: The run is tracked on no server, or see `sync` and `sync_wandb`.
    """
    found = [send for spool, send in SYNCS if spool(model_dir).path.exists()]
    if not found:
        raise UsageError("was not tracked on a server: it has no spool", key="DIR", received=str(model_dir))
    return [send(model_dir) for send in found]


class _Counting(Destination, Protocol):
    points_refused: int


def _deliver(directory: Path, delivery: Delivery, run: _Counting) -> tuple[int, int, str | None]:
    """Delivers all there is; returns how many points were taken, how many wait, and why."""
    if not delivery.take_over():
        raise UsageError(
            "is in use: the process that trains there sends its points itself", key="DIR", received=str(directory)
        )
    sent, problem = 0, None
    try:
        while (batch := delivery.step()) is not None:
            sent += point_count(batch.records) - (run.points_refused if batch.records else 0)
    except Exception as error:  # a server can fail in any way
        problem = str(error)
    finally:
        delivery.hand_over()
    return sent, delivery.waiting(), problem
