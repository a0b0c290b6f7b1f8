"""A flow's run on MLflow, under the names that its users know; live, and with what it had where it fails."""

import contextlib
import hashlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.flow.settings import FlowSettings
from everstep.run.record import read
from everstep.tracking.mlflow import MlflowTracker
from everstep.tracking.mlflow_run import spool_of
from everstep.tracking.mlflow_target import checked_uri, folder_uri
from everstep.tracking.tracker import NoopTracker, Tracker

logger = logging.getLogger(__name__)


def tracking_uri(root: Path) -> str | None:
    """Returns where runs of a project are tracked: `MLFLOW_TRACKING_URI`, else `mlflow.db` in its folder.

    There plain `mlflow ui` shows them. None where MLflow is not installed, which is said.

    Raises:
      UsageError: `MLFLOW_TRACKING_URI` is no server or database.
    """
    if importlib.util.find_spec("mlflow") is None:
        logger.warning("MLflow is not installed, so the run is not tracked there: pip install 'everstep[mlflow]'")
        return None
    return checked_uri(folder_uri(root))


class FlowTracking:
    """One MLflow run over all attempts at a run.

    Args:
      directory: The run directory; what the server does not take waits there.
      run_id: The run's id.
      settings: The resolved configuration.
      root: The project's folder.
      data: The fingerprint of each name of the catalog that was loaded.
      backend: What computes.
    """

    def __init__(
        self,
        directory: Path,
        run_id: str,
        settings: FlowSettings,
        root: Path,
        data: Mapping[str, Mapping[str, Any]],
        backend: str,
    ) -> None:
        self._directory, self._run_id, self._settings, self._root = directory.resolve(), run_id, settings, root
        self._data, self._backend = data, backend
        self._tracker: Tracker = NoopTracker()

    def start(self, model_name: str = "") -> None:
        """Begins an attempt: parameters and tags are on their way before the first step. Again, it does the rest."""
        uri = tracking_uri(self._root)
        if uri is None:
            return
        if isinstance(self._tracker, NoopTracker):
            self._tracker = self._made(uri, model_name)
        self._tracker.start(0)  # a signal may have come while it was doing so

    def _made(self, uri: str, model_name: str) -> MlflowTracker:
        return MlflowTracker(
            self._directory,
            self._run_id,
            self._settings.experiment,
            uri,
            params=flow_params(self._settings, self._data, self._root, model_name),
            tags=self._tags(),
        )

    def _tags(self) -> dict[str, Any]:
        code = read(self._directory)["code"]
        digests = {f"data.{name}.sha256": found.get("sha256", "") for name, found in self._data.items()}
        version = code["commit"] or f"sources {code['sources']}"
        return {
            "task": self._settings.task,
            "chain": self._settings.shown_chain,
            "backend": self._backend,
            "code version": f"{version}{' with changes' if code['dirty'] else ''}",
            "project": str(self._root),
            "run directory": str(self._directory),
            **digests,
        }

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes numbers; those that an earlier attempt logged for the step are not taken twice."""
        self._tracker.log(step, values, "train")

    def files(self, paths: Sequence[Path]) -> None:
        """Notes files of the run directory for the sender; one that has not changed is not noted again."""
        if isinstance(self._tracker, NoopTracker):
            return
        with contextlib.closing(spool_of(self._directory)) as spool:
            kept = {record["path"]: record.get("sha256") for record in spool.records() if record["type"] == "artifact"}
            for path in paths:
                name, digest = str(path.resolve().relative_to(self._directory)), _digest(path)
                if kept.get(name) != digest:
                    spool.append({"type": "artifact", "path": name, "sha256": digest})
        self._tracker.flush()

    def close(self) -> None:
        """Waits a little for the server; an exception on its way says how the run ended. Closing twice is fine."""
        tracker, self._tracker = self._tracker, NoopTracker()
        tracker.close()


def flow_params(
    settings: FlowSettings, data: Mapping[str, Mapping[str, Any]], root: Path, model_name: str = ""
) -> dict[str, Any]:
    """Returns what MLflow shows as parameters: every leaf of the parameters, the catalog and the optimizer.

    `data`, `epoch` and `model name` are there under the short names that people look for.
    """
    paths = [_near(str(found.get("path", name)), root) for name, found in data.items()]
    named = {"data": ", ".join(paths), "model name": settings.params.get("model_name") or model_name}
    tree = {**settings.params.as_dict(), "catalog": settings.catalog, "optimizer": settings.optimizer.as_dict()}
    return redaction.tree({**tree, **named})


def _near(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
