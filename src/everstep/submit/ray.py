"""The executor Ray: its job queue, through the dashboard of a cluster.

Jobs are submitted with Ray's own client. Their state is read from the dashboard's HTTP interface instead: the client
needs Ray to be installed, takes seconds to load, waits for an answer without a time limit, and prefers RAY_ADDRESS to
the address it is given.
"""

import contextlib
import http.client
import json
import logging
import os
import shlex
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.errors import UsageError, missing_extra
from everstep.submit.request import SubmitRequest

logger = logging.getLogger(__name__)

DEFAULT_ADDRESS = "http://127.0.0.1:8265"
"""The dashboard of a cluster that `ray start --head` starts."""

SECONDS = 3.0
"""How long a dashboard has to answer."""

_PASSED_ON = ("KERAS_BACKEND", "MLFLOW_TRACKING_URI", "EVAL_REPORTS_DIR", "PYTHONPATH")
"""Variables that a job needs; Ray starts it in an environment of its own."""

_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_ACTIVE, _ENDED = ("PENDING", "RUNNING"), ("SUCCEEDED", "STOPPED", "FAILED")
_MAX_BYTES = 2**20


def dashboard_address(given: str | None) -> str:
    """Returns the dashboard's address: the given one, or `RAY_ADDRESS`, or this machine's.

    Raises:
      UsageError: It is not the address of a dashboard.
    """
    name, value = ("--address", given) if given else ("RAY_ADDRESS", os.environ.get("RAY_ADDRESS", DEFAULT_ADDRESS))
    if not str(value).startswith(("http://", "https://")):
        raise UsageError(f"expected a dashboard's address such as {DEFAULT_ADDRESS}", key=name, received=value)
    return str(value)


def connect(address: str) -> Any:
    """Returns Ray's client for the jobs of a cluster.

    Raises:
      UsageError: Ray is not installed, or no cluster answers.
    """
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError as error:
        raise missing_extra("ray[default]", "ray", "--on ray") from error
    try:
        with _without_other_addresses():
            return JobSubmissionClient(address)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split()).partition(". ")[0]
        raise UsageError(
            f"no Ray cluster answers ({reason})",
            key="--address",
            received=address,
            remedy="ray start --head starts one",
        ) from error


@contextlib.contextmanager
def _without_other_addresses() -> Iterator[None]:
    """Hides the variables that Ray prefers to the address it is given."""
    hidden = {name: os.environ.pop(name) for name in _ADDRESSES if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(hidden)


def submit(client: Any, request: SubmitRequest, snapshot: Path, max_restarts: int, of_gang: Sequence[str] = ()) -> str:
    """Submits a job to Ray; returns its id.

    Args:
      client: What `connect` returns.
      request: The run.
      snapshot: The folder of the snapshot.
      max_restarts: The maximum number of restarts.
      of_gang: Options of `everstep launch`, if several processes train together.

    Raises:
      UsageError: Ray refuses it.
    """
    command = request.job_command(snapshot, max_restarts, *of_gang)
    return submit_command(client, command, f"{request.title}-{snapshot.name}", request.directory, snapshot)


def submit_command(
    client: Any,
    command: Sequence[str],
    name: str,
    directory: Path,
    snapshot: Path | None = None,
    resources: Mapping[str, float] | None = None,
) -> str:
    """Submits a command to Ray, under a name that no other job has; returns the job's id.

    Args:
      client: What `connect` returns.
      command: Program and arguments.
      name: The job's name.
      directory: The run directory, for the job's metadata.
      snapshot: The folder of the snapshot, likewise.
      resources: What Ray reserves for it, on any node: `num_cpus`, `num_gpus`. None: nothing, on the head node.

    Raises:
      UsageError: Ray refuses it.
    """
    metadata = {"run": str(directory), **({} if snapshot is None else {"snapshot": str(snapshot)})}
    try:
        return str(
            client.submit_job(
                entrypoint=f"exec {shlex.join(command)}",
                submission_id=name,
                runtime_env={"env_vars": _environment()},
                metadata=metadata,
                **{f"entrypoint_{name}": amount for name, amount in (resources or {}).items()},
            )
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise UsageError(f"the cluster refused: {reason}", key="--on", received="ray") from error


def _environment() -> dict[str, str]:
    """Returns the variables for the job, without those that contain a secret: Ray's dashboard shows them."""
    known = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    secret = [name for name, value in known.items() if redaction.text(value) != value]
    for name in secret:
        logger.warning("%s contains a secret and is not passed to Ray: set it where the cluster is started", name)
    return {name: value for name, value in known.items() if name not in secret}


class Unreachable(Exception):
    """No dashboard answers at an address."""


def has_job(address: str, job: str) -> bool | None:
    """Returns whether a job of a cluster is waiting or running; None if its answer is not understood.

    Raises:
      Unreachable: The dashboard does not answer.
    """
    if not address.startswith(("http://", "https://")):
        return None
    try:
        body = _answer(address, f"/api/jobs/{urllib.parse.quote(job, safe='')}")
    except urllib.error.HTTPError as error:
        with error:
            unknown = error.code == 404 and b"does not exist" in error.read(_MAX_BYTES)
        return False if unknown else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unreachable(f"{address} does not answer: {error}") from error
    try:
        status = json.loads(body)["status"]
    except (ValueError, KeyError, TypeError):
        return None
    return True if status in _ACTIVE else False if status in _ENDED else None


def has_gpus(address: str) -> bool:
    """Returns whether a node of a cluster has a GPU; False also if the answer is not understood."""
    try:
        nodes = json.loads(_answer(address, "/api/v0/nodes?detail=1"))["data"]["result"]["result"]
        return any(node["resources_total"].get("GPU", 0) > 0 for node in nodes if node["state"] == "ALIVE")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, http.client.HTTPException):
        return False


def _answer(address: str, path: str) -> bytes:
    with urllib.request.urlopen(f"{address.rstrip('/')}{path}", timeout=SECONDS) as answer:
        return bytes(answer.read(_MAX_BYTES))
