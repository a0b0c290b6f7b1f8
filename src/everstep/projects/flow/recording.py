"""`FlowContext`: the settings and the catalog of one run of a flow, its record, and its run on MLflow."""

import contextlib
import copy
import dataclasses
import functools
import importlib.util
import json
import logging
import os
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import TrainingError, UsageError
from everstep.projects import FLOW, MlflowTracking, Tracking, tracking_uri, version_text
from everstep.projects.catalog import Catalog
from everstep.projects.flow.settings import FlowSettings, Params, TaskParams
from everstep.projects.flow.unread import shown, unread_parameters
from everstep.run import CODE_DIFF, REQUIREMENTS, Run, Status, processor, read
from everstep.tracking import MlflowNames, active_run, checked_uri, folder_uri, plain

logger = logging.getLogger(__name__)


class UsedCatalog:
    """A catalog that records what is loaded from it, with its fingerprint; it is otherwise the catalog itself.

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
        """Returns where the data of a name is on this machine, for code that opens it itself; recorded as loaded.

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


def _near(path: str, root: Path) -> str:
    return str(Path(path).relative_to(root)) if Path(path).is_relative_to(root) else path


def copy_file(path: Path, target: Path) -> None:
    """Copies a file, whole or not at all; creates the folder of the copy."""
    storage.prepare_directory(target.parent)
    with storage.atomic_path(target) as temporary:
        shutil.copyfile(path, temporary)


RESULTS, SHORT = {"model.evaluate": "{split} {name}"}, {"accuracy": "acc"}
"""The names of test metrics, on MLflow and in the results of a flow: `test loss`, `test acc`."""

UNREAD = "unread parameters"
"""The tag on MLflow with the parameters that the task never reads."""

ENVIRONMENT = "environment.json"
"""The file with versions, hardware, code and the command."""


def write_environment(directory: Path) -> list[Path]:
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
    from everstep.engine import devices  # imports Keras

    return list(devices())


def _memory() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


@dataclasses.dataclass
class FlowContext:
    """Everything that one task runs with.

    Attributes:
      settings: The resolved configuration.
      params: The task's parameters as its code has them: what it reads is noted.
      catalog: The data; it records what is loaded.
      root: The project's folder.
      directory: The run directory.
      backend: The Keras backend.
      allow_change: Keys that a resumed run may change although they alter what it computes.
      verbose: 0 prints nothing, 1 progress, 2 a line per epoch.
      names_directory: Whether the user has named the run directory.
      model_name: The model's name, once it is built.
      tracking: The run on MLflow, once there is one.
      own: The record of a `run` that the user wrote, once there is one.
      is_with_loop: Whether the loop records the run.
      unread: The names of the parameters that nothing has read, once that is known.
      is_running: Whether the task's `run` is being called.
    """

    settings: FlowSettings
    params: TaskParams
    catalog: UsedCatalog
    root: Path
    directory: Path
    backend: str
    allow_change: Sequence[str] = ()
    verbose: int = 1
    names_directory: bool = False
    model_name: str = ""
    tracking: Tracking | None = None
    own: Run | None = None
    is_with_loop: bool = False
    unread: str | None = None
    is_running: bool = False
    _is_active: bool = False
    _opening: threading.RLock = dataclasses.field(default_factory=threading.RLock)

    @functools.cached_property
    def blocks(self) -> Params:
        """All of `parameters.yaml`, for a task's `__init__`; the task's own block is `params`."""
        blocks = copy.deepcopy(self.settings.blocks)
        vars(blocks)[self.settings.task] = self.params  # not by assignment: to lock or convert it would read it
        return blocks

    def begin(self, run_id: str, model_name: str = "") -> Tracking:
        """Starts to track an attempt, with the configuration and the environment; a second call does nothing."""
        self.model_name = model_name or self.model_name
        if self.tracking is None:
            storage.prepare_directory(self.directory)
            self.tracking, uri = Tracking(), tracking_uri(self.root)
            if uri is not None:
                self.tracking = MlflowTracking(self.directory, uri, lambda: run_id, self.names)
            self.tracking.start()
            storage.write_text(self.directory / FLOW.settings, self.settings.as_yaml())
            written = [self.directory / FLOW.settings, *write_environment(self.directory)]
            stored = self.directory / "config.yaml"
            self.tracking.files([*written, *([stored] if stored.is_file() else [])])
        return self.tracking

    def names(self) -> MlflowNames:
        """Returns what the run is called on MLflow.

        Every leaf of the parameters, the catalog and the optimizer is a parameter there. `data`, `epoch` and
        `model name` are there under the short names that people look for.
        """
        settings, data = self.settings, self.catalog.used
        paths = [_near(str(found.get("path", name)), self.root) for name, found in data.items()]
        short = {"data": ", ".join(paths), "model name": settings.params.get("model_name") or self.model_name}
        return MlflowNames(
            experiment=settings.experiment,
            params={
                **settings.params.as_dict(),
                "catalog": settings.catalog,
                "optimizer": settings.optimizer.as_dict(),
                **{name: value for name, value in short.items() if value},  # else it is not known yet
            },
            tags={
                "task": settings.task,
                "chain": settings.shown_chain,
                "backend": self.backend,
                "code version": version_text(read(self.directory)["code"]),
                "project": str(self.root),
                "run directory": str(self.directory.resolve()),
                **{f"data.{name}.sha256": found.get("sha256", "") for name, found in data.items()},
                **({} if self.unread is None else {UNREAD: self.unread or "none"}),
            },
            results=RESULTS,
            short=SHORT,
        )

    def check_parameters(self) -> None:
        """Warns of the parameters that nothing has read so far, once; on MLflow they are in a tag.

        The default `run` calls it before the training, and once more at the end: code may read one while it trains.
        """
        problems = unread_parameters(self.settings, self.params)
        for line in shown(problems) if self.unread is None else ():
            logger.warning("%s", line)
        self.unread = ", ".join(problem.key.removeprefix(f"{self.settings.task}.") for problem in problems)
        if self.tracking is not None:
            self.tracking.describe()

    def record(self, complete: bool = False) -> dict[str, Any]:
        """Returns the entries of a flow in `run.json`: the task, and what was loaded from the catalog."""
        flow = {"task": self.settings.task, "project": str(self.root), "complete": complete}
        return {"flow": flow, "data": self.catalog.used}

    @contextlib.contextmanager
    def active_run(self) -> Iterator[None]:
        """Inside the block `mlflow.log_metric` and MLflow's other functions log to this run, as `log` does."""
        if self._is_active or importlib.util.find_spec("mlflow") is None:
            yield
            return
        self._is_active = True
        try:
            uri = checked_uri(folder_uri(self.root))
            with active_run(uri, self.settings.experiment, self._open_on_mlflow):
                yield
        finally:
            self._is_active = False

    def _open_on_mlflow(self) -> str:
        """Returns the id of the run on MLflow, for MLflow's own functions, which need the server at once.

        Raises:
          TrainingError: The server does not answer, or the run has not begun.
        """
        with self._opening:
            found = self._tracked().remote_id()
        if found is None:
            raise TrainingError(
                "MLflow does not answer, and mlflow.log_… needs it at once",
                remedy="use self.log_metrics(…) and self.log_file(…): they keep what a server does not take yet",
            )
        return found

    def close(self) -> None:
        """Ends tracking; an exception that is being raised tells how the run ended."""
        if self.tracking is not None:
            self.tracking.close()

    def log(self, values: Mapping[str, float], step: int) -> None:
        """Keeps numbers with the run."""
        self._tracked().log(step, values)
        lines = [json.dumps([step, name, repr(value)]) + "\n" for name, value in plain(values).items()]
        with open(self.directory / FLOW.logged, "a", encoding="utf-8") as file:
            file.writelines(lines)

    def keep(self, path: Path) -> None:
        """Keeps a file with the run; one that is not in its directory is copied there.

        Raises:
          UsageError: There is no such file.
        """
        path = self.root / path  # like all paths of a project, whatever the working directory
        if not path.is_file():
            raise UsageError("there is no such file", key="log_file", received=str(path))
        kept = path.resolve()
        if not kept.is_relative_to(self.directory.resolve()):
            kept = self.directory.resolve() / "files" / path.name
            copy_file(path, kept)
        self._tracked().files([kept])

    def _tracked(self) -> Tracking:
        """Returns the run on MLflow; tracking that was closed is resumed."""
        tracking = self.tracking or (self._begin_with_loop() if self.is_with_loop else self.open_record())
        tracking.start()
        return tracking

    def _begin_with_loop(self) -> Tracking:
        """Begins to track a run that the loop has recorded; callbacks may ask for it before the first step."""
        if not (self.directory / "run.json").is_file():
            raise TrainingError(
                "nothing can be logged while the model and the first batch are built: the run has not begun",
                remedy="log it in preprocessing_train() or in a callback",
            )
        return self.begin(read(self.directory)["id"])

    def open_record(self) -> Tracking:
        """Begins and tracks an attempt in `run.json`, for a `run` that the user wrote."""
        self.own = run = Run.open(self.directory, self.settings.task, self.backend, code_root=self.root)
        if changed := run.changed_code():
            logger.warning("the code has changed since the last attempt: %s", changed)
        record = self.record()
        run.begin(0, self.settings.as_yaml(), data=record["data"])
        (self.directory / FLOW.logged).unlink(missing_ok=True)  # all numbers are logged again
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
            return  # the loop has recorded it
        self._tracked()  # the end of the run is sent, too
        if status == "finished":
            self.check_parameters()
        run.record["flow"] = self.record(complete=status == "finished")["flow"]
        run.record["data"] = {**run.record["data"], **self.catalog.used}
        run.finish(status, redaction.text(reason), run.record["digest"], run.record["weights_digest"])

    def hand_over(self) -> None:
        """Lets the loop record the run from here on; it continues the record that the user's code has begun, if any."""
        self.is_with_loop = True
        if self.own is not None:
            self.own.finish("running", "continued by the loop")
            self.own = None
