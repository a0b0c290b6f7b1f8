"""A run on MLflow, for entry points that always track there: components and flows.

An entry point fills `MlflowNames` (experiment, parameters, tags, names of results); all else is the same for all.

`components/orchestrator.py` (`mlflow_names`) and `flow/recording.py` fill it; for experiments, `run/trackers.py` does.
"""

import contextlib
import hashlib
import importlib.util
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.extras import install_command
from everstep.tracking import MlflowNames, MlflowTracker, NoopTracker, checked_uri, folder_uri, spool_of

logger = logging.getLogger(__name__)


def tracking_uri(root: Path) -> str | None:
    """Returns where runs of a project are tracked: `MLFLOW_TRACKING_URI`, else `mlflow.db` in the project's folder.

    There plain `mlflow ui` shows them. Without MLflow, warns and returns None.

    Raises:
      UsageError: `MLFLOW_TRACKING_URI` is no server or database.
    """
    if importlib.util.find_spec("mlflow") is None:
        logger.warning("MLflow is not installed, so the run is not tracked there: %s", install_command("mlflow"))
        return None
    return checked_uri(folder_uri(root))


def version_text(code: Mapping[str, Any]) -> str:
    """Returns the version of the code as a tag: a commit, or a digest of the sources."""
    if code["commit"] is None:
        return f"sources {code['sources']}"
    return f"{code['commit']}{' with changes' if code['dirty'] else ''}"


class Tracking:
    """Tracking switched off: every method does nothing.

    `start` is called first, `close` last, even if nothing was started.
    """

    def start(self) -> None:
        """Starts an attempt; a second call does nothing. Nothing is written before it."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs the numbers of a step or an epoch, under the names that they have."""

    def log_evaluation(self, number: int, results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """Logs an evaluation.

        Args:
          number: Counts the evaluations whose results differ from the one before.
          results: Metrics by split, by what computed them and by name.
        """

    def files(self, paths: Sequence[Path]) -> None:
        """Logs files of the run directory as artifacts; one that has not changed is not logged again."""

    def describe(self) -> None:
        """Sends parameters and tags again, where more is known than when the attempt started."""

    def remote_id(self) -> str | None:
        """Returns the id of the run on the server, after `start`; None where the server does not answer."""
        return None

    def close(self) -> None:
        """Ends the attempt; an exception that is being raised tells how. A second call does nothing."""


class MlflowTracking(Tracking):
    """One MLflow run over all attempts of a run.

    Args:
      directory: The run directory, whose spool keeps what the server has not received yet.
      uri: The server or database.
      run_id: Returns the run's id; called when an attempt starts.
      names: Returns what the run is called on MLflow; called when an attempt starts.
    """

    def __init__(self, directory: Path, uri: str, run_id: Callable[[], str], names: Callable[[], MlflowNames]) -> None:
        self._directory, self._uri = directory.resolve(), uri
        self._run_id, self._names = run_id, names
        self._tracker: MlflowTracker | NoopTracker = NoopTracker()
        self._closed = False

    def start(self) -> None:
        """Starts an attempt, and sends parameters and tags before the first step.

        A second call completes a first one that a signal has interrupted; after `close` it resumes tracking.
        """
        self._closed = False
        if isinstance(self._tracker, NoopTracker):
            self._tracker = MlflowTracker(self._directory, self._run_id(), self._names(), self._uri)
        self._tracker.start(0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Logs numbers; those that an earlier attempt logged for the step are not logged twice."""
        self._tracker.log(step, values, "train")

    def log_evaluation(self, number: int, results: Mapping[str, Mapping[str, Mapping[str, float]]]) -> None:
        """Logs the results of an evaluation under their names on MLflow."""
        self.log(number, self._names().named(results))

    def files(self, paths: Sequence[Path]) -> None:
        """Queues files for the sender, which uploads them in the background; a server that is down costs nothing."""
        with contextlib.closing(spool_of(self._directory)) as spool:
            sent = {record["path"]: record.get("sha256") for record in spool.records() if record["type"] == "artifact"}
            for path in paths:
                name, digest = str(path.resolve().relative_to(self._directory)), _digest(path)
                if sent.get(name) != digest:
                    spool.append({"type": "artifact", "path": name, "sha256": digest})
        self._tracker.flush()

    def describe(self) -> None:
        """Queues parameters that the server does not have, and all tags, for the sender."""
        if isinstance(self._tracker, MlflowTracker):
            self._tracker.describe(self._names())

    def remote_id(self) -> str | None:
        """Returns the id of the run on the server; waits until the run exists there."""
        return self._tracker.remote_id() if isinstance(self._tracker, MlflowTracker) else None

    def close(self) -> None:
        """Waits a little for the server, and warns about what it has not received.

        An attempt that fails before tracking started still reports how it ended, if an earlier one was tracked.
        """
        if self._closed:
            return
        error = sys.exception()
        if error is not None and not isinstance(error, UsageError) and self._was_tracked():
            self.start()
        tracker, self._tracker, self._closed = self._tracker, NoopTracker(), True
        tracker.close()

    def _was_tracked(self) -> bool:
        with contextlib.closing(spool_of(self._directory)) as spool:
            return spool.path.is_file()


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
