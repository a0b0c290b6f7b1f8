"""What a task is given before its constructor runs, and what a run of it keeps."""

import dataclasses
import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.errors import UsageError
from everstep.flow.catalog_tree import UsedCatalog
from everstep.flow.settings import FlowSettings
from everstep.flow.surroundings import write_surroundings
from everstep.flow.tracking import FlowTracking
from everstep.run.record import LOGGED, Run, Status
from everstep.tracking.tracker import plain

logger = logging.getLogger(__name__)


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
            raise UsageError(f"log_file: there is no file {str(path)!r}")
        kept = path.resolve()
        if not kept.is_relative_to(self.directory.resolve()):
            kept = self.directory.resolve() / "files" / path.name
            storage.prepare_directory(kept.parent)
            with storage.atomic_path(kept) as temporary:
                shutil.copyfile(path, temporary)
        self._tracked().files([kept])

    def _tracked(self) -> FlowTracking:
        """Returns the run on MLflow; one that was closed goes on."""
        tracking = self.tracking or self.open_record()
        tracking.start()
        return tracking

    def open_record(self) -> FlowTracking:
        """Begins an attempt in `run.json`, and to track it, where it is not the loop that does so."""
        self.own = run = Run.open(self.directory, self.settings.task, self.backend)
        run.code_root = self.root
        if changed := run.changed_code():
            logger.warning("the code has changed since the last attempt: %s", changed)
        told = self.record()
        run.begin(0, self.settings.as_yaml(), data=told["data"])
        (self.directory / LOGGED).unlink(missing_ok=True)  # it does all of it anew
        run.record["flow"] = told["flow"]
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
            self.own.finish("running", "goes on in the loop")
            self.own = None
