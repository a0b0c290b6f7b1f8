"""The run on MLflow: one for training, export and evaluation, over all attempts, under the names that users know."""

import contextlib
import hashlib
import importlib.util
import logging
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from everstep import redaction
from everstep.errors import UsageError
from everstep.frontends.components.config import DESCRIPTIONS, ConfigStruct
from everstep.frontends.components.run_folder import RunFolder
from everstep.run.environment import code_version
from everstep.tracking.mlflow import MlflowTracker, checked_uri, default_uri, spool_of
from everstep.tracking.tracker import NoopTracker, Tracker

logger = logging.getLogger(__name__)


class Tracking(Protocol):
    """Where a run is logged; `start` is called first, `close` last, even if nothing was started."""

    def start(self) -> None:
        """Starts an attempt; a second call does nothing. Nothing is written before it."""

    def epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Logs an epoch, under Keras's names."""

    def evaluation(self, number: int, values: Mapping[str, float]) -> None:
        """Logs an evaluation; `number` counts those whose results differ from the one before."""

    def files(self, paths: Sequence[Path]) -> None:
        """Logs files of the run's folder as artifacts; one that has not changed is not logged again."""

    def close(self) -> None:
        """Ends the attempt; an exception that is being raised tells how."""


class NoTracking:
    """Tracking switched off."""

    def start(self) -> None:
        """Does nothing."""

    def epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Does nothing."""

    def evaluation(self, number: int, values: Mapping[str, float]) -> None:
        """Does nothing."""

    def files(self, paths: Sequence[Path]) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class MlflowTracking:
    """One MLflow run: experiment = `project_name`, name = the run's, a parameter for every value of the configuration.

    Args:
      folder: The run's folder, which also holds what the server has not received yet.
      config: The configuration.
      root: The project, whose code version is recorded.
    """

    def __init__(self, folder: RunFolder, config: ConfigStruct, root: Any) -> None:
        self._folder, self._config, self._root = folder, config, root
        self._uri = checked_uri(default_uri(folder.path))
        self._tracker: Tracker = NoopTracker()

    def start(self) -> None:
        """Starts an attempt, and sends the parameters; a second call completes an interrupted first one."""
        if isinstance(self._tracker, NoopTracker):
            self._tracker = self._create_tracker()
        self._tracker.start(0)  # a signal may have interrupted the first call

    def _create_tracker(self) -> MlflowTracker:
        config, version = self._config, _version(self._root)
        names = {"project name": config.project_name, "run name": self._folder.name, "code version": version}
        return MlflowTracker(
            self._folder.path,
            self._folder.run_id(),
            str(config.project_name),
            self._uri,
            params={**config_params(config), **names},
            tags={"session_type": "training", "code version": version},
        )

    def epoch(self, epoch: int, logs: Mapping[str, float]) -> None:
        """Logs an epoch, unless an earlier attempt has logged it."""
        self._tracker.log(epoch, logs, "train")

    def evaluation(self, number: int, values: Mapping[str, float]) -> None:
        """Logs an evaluation."""
        self._tracker.log(number, values, "train")

    def files(self, paths: Sequence[Path]) -> None:
        """Queues files for the sender, which uploads them in the background; a server that is down costs nothing."""
        with contextlib.closing(spool_of(self._folder.path)) as spool:
            kept = {record["path"]: record.get("sha256") for record in spool.records() if record["type"] == "artifact"}
            for path in paths:
                name, digest = str(path.relative_to(self._folder.path)), _digest(path)
                if kept.get(name) != digest:
                    spool.append({"type": "artifact", "path": name, "sha256": digest})
        self._tracker.flush()

    def close(self) -> None:
        """Waits a little for the server, and warns about what it has not received.

        An attempt that fails before tracking started still reports how it ended, if an earlier one was tracked.
        """
        error = sys.exception()
        if error is not None and not isinstance(error, UsageError) and _was_tracked(self._folder):
            self.start()
        self._tracker.close()


def _was_tracked(folder: RunFolder) -> bool:
    """Whether an earlier attempt was tracked."""
    with contextlib.closing(spool_of(folder.path)) as spool:
        return spool.path.is_file()


def create_tracking(folder: RunFolder, config: ConfigStruct, root: Any) -> Tracking:
    """Returns MLflow's tracking; without MLflow, warns and returns none.

    Raises:
      UsageError: `MLFLOW_TRACKING_URI` is no server or database.
    """
    if importlib.util.find_spec("mlflow") is None:
        logger.warning("MLflow is not installed, so the run is not tracked: pip install 'everstep[mlflow]'")
        return NoTracking()
    return MlflowTracking(folder, config, root)


def config_params(config: ConfigStruct) -> dict[str, Any]:
    """Returns every value of the configuration as `config_<dotted.key>`, without secrets and descriptions."""
    described = {name: value for name, value in config.as_dict().items() if name not in DESCRIPTIONS}
    shown = ConfigStruct(redaction.tree(described))
    return {f"config_{key}": value for key, value in shown.leaves()}


def _version(root: Any) -> str:
    code = code_version(root)
    if code["commit"] is None:
        return f"sources {code['sources']}"
    return f"{code['commit']}{' with changes' if code['dirty'] else ''}"


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
