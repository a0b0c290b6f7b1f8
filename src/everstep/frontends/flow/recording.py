"""What surrounds one run of a flow: its settings and catalog, its record, and its run on MLflow."""

import contextlib
import dataclasses
import hashlib
import importlib.util
import json
import logging
import os
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.frontends.catalog import Catalog
from everstep.frontends.flow.settings import FlowSettings
from everstep.run.environment import CODE_DIFF, REQUIREMENTS, processor
from everstep.run.record import LOGGED, Run, Status, read
from everstep.tracking.mlflow import MlflowTracker, checked_uri, folder_uri, spool_of
from everstep.tracking.tracker import NoopTracker, Tracker, plain

logger = logging.getLogger(__name__)


class UsedCatalog:
    """A catalog that notes what is loaded from it, with its fingerprint; all else is the catalog's own.

    Attributes:
      used: The fingerprint of each name that was loaded.
    """

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self.used: dict[str, dict[str, Any]] = {}

    def load(self, name: str, version: str | int | None = None) -> Any:
        """Returns the data of a name.

        Raises:
          UsageError: There is no such name, with the nearest ones; or no such data, with its absolute path.
        """
        value = self._catalog.load(name, version)
        self.used[name] = dict(self._catalog.fingerprint(name, version))
        return value

    def path(self, name: str, version: str | int | None = None) -> Path:
        """Returns where the data of a name is on this machine, for code that opens it itself; as good as loaded.

        Raises:
          UsageError: As `load`.
        """
        found = self._catalog.path(name, version)
        self.used[name] = dict(self._catalog.fingerprint(name, version))
        return found

    def __contains__(self, name: object) -> bool:
        return name in self._catalog

    def __iter__(self) -> Iterator[str]:
        return iter(self._catalog)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._catalog, name)


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


ENVIRONMENT = "environment.json"
"""The file that tells versions, hardware, code and the command."""


def write_surroundings(directory: Path) -> list[Path]:
    """Writes `environment.json`; returns it, and the files of the run's record that belong beside it.

    Args:
      directory: The run directory, with its record.
    """
    record = read(directory)
    facts = {**record["environment"], "hardware": hardware(), "code": record["code"], "command": sys.argv}
    storage.write_json(directory / ENVIRONMENT, redaction.tree(facts))
    names = (ENVIRONMENT, REQUIREMENTS, CODE_DIFF)
    return [directory / name for name in names if (directory / name).is_file()]


def hardware() -> dict[str, Any]:
    """Returns processor, memory and the devices that compute."""
    return {"processor": processor(), "cpu_count": os.cpu_count(), "memory_bytes": _memory(), "devices": _devices()}


def _devices() -> list[str]:
    if "keras" not in sys.modules:
        return []
    from everstep.engine.devices import devices  # brings Keras

    return list(devices())


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


@dataclasses.dataclass
class FlowContext:
    """Everything around one task.

    Attributes:
      settings: The resolved configuration.
      catalog: The data; it notes what is loaded.
      root: The project's folder.
      directory: The run directory.
      backend: What computes.
      allow_change: Keys that a resumed run may change although they alter what it computes.
      verbose: Whether to print progress.
      tracking: The run on MLflow, once there is one.
      own: The record of a `run` that the user wrote, once there is one.
    """

    settings: FlowSettings
    catalog: UsedCatalog
    root: Path
    directory: Path
    backend: str
    allow_change: Sequence[str] = ()
    verbose: bool = True
    tracking: FlowTracking | None = None
    own: Run | None = None

    def begin(self, run_id: str, model_name: str = "") -> FlowTracking:
        """Begins to track an attempt, with the configuration and the surroundings; again, it does nothing."""
        if self.tracking is None:
            storage.prepare_directory(self.directory)
            data = self.catalog.used
            self.tracking = FlowTracking(self.directory, run_id, self.settings, self.root, data, self.backend)
            self.tracking.start(model_name)
            storage.write_text(self.directory / "flow.yaml", self.settings.as_yaml())
            written = [self.directory / "flow.yaml", *write_surroundings(self.directory)]
            stored = self.directory / "config.yaml"
            self.tracking.files([*written, *([stored] if stored.is_file() else [])])
        return self.tracking

    def record(self, complete: bool = False) -> dict[str, Any]:
        """Returns what `run.json` says of a flow: which it is, and what was loaded from the catalog."""
        flow = {"task": self.settings.task, "project": str(self.root), "complete": complete}
        return {"flow": flow, "data": self.catalog.used}

    def close(self) -> None:
        """Ends what is tracked; an exception on its way says how."""
        if self.tracking is not None:
            self.tracking.close()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keeps numbers with the run."""
        self._tracked().log(step, values)
        lines = [json.dumps([step, name, repr(value)]) + "\n" for name, value in plain(values).items()]
        with open(self.directory / LOGGED, "a", encoding="utf-8") as file:
            file.writelines(lines)

    def keep(self, path: Path) -> None:
        """Keeps a file with the run; one that is not in its directory is copied there.

        Raises:
          UsageError: There is no such file.
        """
        path = self.root / path  # as all paths of a project are, wherever it is called
        if not path.is_file():
            raise UsageError("there is no such file", key="log_file", received=str(path))
        kept = path.resolve()
        if not kept.is_relative_to(self.directory.resolve()):
            kept = self.directory.resolve() / "files" / path.name
            storage.prepare_directory(kept.parent)
            with storage.atomic_path(kept) as temporary:
                shutil.copyfile(path, temporary)
        self._tracked().files([kept])

    def _tracked(self) -> FlowTracking:
        """Returns the run on MLflow; one that was closed is resumed."""
        tracking = self.tracking or self.open_record()
        tracking.start()
        return tracking

    def open_record(self) -> FlowTracking:
        """Begins an attempt in `run.json`, and to track it, where it is not the loop that does so."""
        self.own = run = Run.open(self.directory, self.settings.task, self.backend, code_root=self.root)
        if changed := run.changed_code():
            logger.warning("the code has changed since the last attempt: %s", changed)
        record = self.record()
        run.begin(0, self.settings.as_yaml(), data=record["data"])
        (self.directory / LOGGED).unlink(missing_ok=True)  # it does all of it anew
        run.record["flow"] = record["flow"]
        run.update(0, 0)
        return self.begin(run.id)

    def end_record(self, status: Status, reason: str) -> None:
        """Ends the attempt of a `run` that the user wrote: in `run.json`, and for what is tracked.

        Where that called the default `run`, the loop has recorded an attempt. What failed after it is noted there.
        """
        if self.tracking is None:
            self.open_record()
        run = self.own or Run.open(self.directory, self.settings.task, self.backend)
        if self.own is None and (status == "finished" or run.record["status"] != "finished"):
            return  # the loop has said so
        self._tracked()  # so that how it ended is sent, too
        run.record["flow"] = self.record(complete=status == "finished")["flow"]
        run.record["data"] = {**run.record["data"], **self.catalog.used}
        run.finish(status, redaction.text(reason), run.record["digest"], run.record["weights_digest"])

    def hand_over(self) -> None:
        """Leaves the record to the loop, where a `run` that the user wrote had begun one and then calls the default."""
        if self.own is not None:
            self.own.finish("running", "continued by the loop")
            self.own = None
