"""Ray: its own job queue, through the dashboard of a cluster."""

import contextlib
import logging
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.errors import UsageError, missing_extra
from everstep.launch.submit.background import job_command
from everstep.launch.submit.request import Request

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
"""Where `ray start --head` has its dashboard."""

_HANDED_ON = ("KERAS_BACKEND", "MLFLOW_TRACKING_URI", "EVAL_REPORTS_DIR", "PYTHONPATH")
"""What a job needs of the environment it was submitted from; Ray starts it in its own."""

_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")


def address(given: str | None) -> str:
    """Returns the dashboard's address: as given, or `RAY_ADDRESS`, or this machine's.

    Raises:
      UsageError: It is no address of a dashboard.
    """
    named, value = ("--address", given) if given else ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS", DEFAULT_ADDRESS))
    if not str(value).startswith(("http://", "https://")):
        raise UsageError(f"{named}: received {value!r}, expected a dashboard's address such as {DEFAULT_ADDRESS}")
    return str(value)


def connect(where: str) -> Any:
    """Returns Ray's client for the jobs of a cluster.

    Raises:
      UsageError: Ray is not installed, or nobody answers.
    """
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise missing_extra("ray[default]", "ray", "--engine ray") from error
    try:
        with _no_other_address():
            return JobSubmissionClient(where)
    except (ConnectionError, RuntimeError, ValueError) as error:
        said = " ".join(str(error).split()).partition(". ")[0]
        raise UsageError(
            f"--address: no Ray cluster answers at {where} ({said}): ray start --head starts one"
        ) from error


@contextlib.contextmanager
def _no_other_address() -> Iterator[None]:
    """Hides the variables that Ray prefers to the address it is given."""
    hidden = {name: os.environ.pop(name) for name in _ADDRESSES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def submit(client: Any, request: Request, snapshot: Path, max_restarts: int) -> str:
    """Hands a job to Ray; returns its id.

    Raises:
      UsageError: Ray does not take it.
    """
    job = f"{request.title}-{snapshot.name}"
    try:
        return str(
            client.submit_job(
                entrypoint=f"exec {shlex.join(job_command(request, snapshot, max_restarts))}",
                submission_id=job,
                runtime_env={"env_vars": _environment()},
                metadata={"run": str(request.directory), "snapshot": str(snapshot)},
            )
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"--engine ray: the cluster refused: {' '.join(str(error).split())[:300]}") from error


def _environment() -> dict[str, str]:
    """Returns what is handed on; what has a secret in it is not, for Ray shows it to everybody on its dashboard."""
    known = {name: os.environ[name] for name in _HANDED_ON if name in os.environ}
    secret = [name for name, value in known.items() if redaction.text(value) != value]
    for name in secret:
        logger.warning("%s has a secret in it and is not handed to Ray: set it where the cluster is started", name)
    return {name: value for name, value in known.items() if name not in secret}
