"""Weights & Biases, behind a spool: one W&B run per everstep run, over all attempts.

W&B numbers the rows of a run, and takes them in order. A record of the spool that makes a row always has the same
number, its place among such records; a resumed run reports which row comes next, and earlier ones are skipped. So each
row arrives once, whatever was being sent when a process was killed.

Files for later (`offline`) are written again by each attempt, from the first row on: the newest folder below
`MODEL_DIR/wandb` has the whole run. W&B's own package runs in another process (`wandb_process.py`).
"""

import collections
import contextlib
import dataclasses
import importlib.util
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

from everstep import redaction, storage
from everstep.errors import missing_extra
from everstep.tracking import wandb_process
from everstep.tracking.delivery import Delivery, DeliveryProgress, Forgotten, SendDelays
from everstep.tracking.samples import histogram
from everstep.tracking.spool import Record, Spool, flattened, last_target, named_values
from everstep.tracking.spooled_tracker import SpooledTracker, Status

logger = logging.getLogger(__name__)

# No output of W&B's own on the screen, and no error reports to its makers.
_ENVIRONMENT = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_ERROR_REPORTING": "false"}

# Settings of another run that this process may be a part of.
_NOT_OURS = ("WANDB_SERVICE", "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_MODE", "WANDB_DIR", "WANDB_SWEEP_ID")


def _environment() -> dict[str, str]:
    """Returns this process's variables, with W&B's settings."""
    return {name: value for name, value in os.environ.items() if name not in _NOT_OURS} | _ENVIRONMENT


Mode = Literal["online", "offline"]

_NOT_IN_PROJECTS = re.compile(r"[/\\#?%:]+")
_LONGEST_PROJECT = 128
_LONGEST_TAG = 64
_OFFLINE = ("offline", "dryrun")  # both are W&B's own words


@dataclasses.dataclass(frozen=True)
class WandbTarget:
    """Where a run is recorded.

    Attributes:
      run_id: The id of the everstep run, and of the one on W&B.
      project: The project on W&B.
      entity: The user or team; empty for the account's own.
      mode: Whether to send at once, or to keep files.
      name: What the run is called there.
    """

    run_id: str
    project: str
    entity: str
    mode: Mode
    name: str

    @property
    def server(self) -> str:
        """The server, entity and project that the records are delivered to."""
        if self.mode == "offline":
            return "offline"
        return "/".join(filter(None, [_base_url(), self.entity, self.project]))

    def record(self) -> Record:
        """Returns the target as a record of the spool."""
        return {"type": "target", **dataclasses.asdict(self)}

    @classmethod
    def recorded(cls, records: Iterable[Record]) -> "WandbTarget | None":
        """Returns the last target in a spool, to be sent online."""
        if (last := last_target(records)) is None:
            return None
        return cls(last["run_id"], last["project"], last["entity"], "online", last["name"])


def make_target(run_id: str, experiment: str, name: str, project: str, entity: str, mode: str) -> WandbTarget:
    """Returns the target of the configuration's values; empty ones are taken from W&B's own variables.

    Raises:
      UsageError: W&B's package is missing.
    """
    require_package()
    chosen = (mode or os.environ.get("WANDB_MODE", "")).lower()
    return WandbTarget(
        run_id,
        project or os.environ.get("WANDB_PROJECT") or _NOT_IN_PROJECTS.sub("-", experiment)[:_LONGEST_PROJECT],
        entity or os.environ.get("WANDB_ENTITY", ""),
        "offline" if chosen in _OFFLINE else "online",
        name,
    )


def is_disabled() -> bool:
    """Returns whether `WANDB_MODE` disables W&B, as it does for every program."""
    return os.environ.get("WANDB_MODE", "").lower() == "disabled"


def require_package() -> None:
    """Checks that W&B's package is installed.

    Raises:
      UsageError: It is not.
    """
    if importlib.util.find_spec("wandb") is None:
        raise missing_extra("wandb", "wandb", "tracking with Weights & Biases")


def _base_url() -> str:
    return os.environ.get("WANDB_BASE_URL", "wandb.ai").removeprefix("https://").rstrip("/")


_EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 255}  # W&B calls a run that ended with 255 killed
_ROWS = ("metrics", "media", "histograms")
_SENT = (*_ROWS, "params", "tags", "notes")
_INIT_SECONDS = 30.0
_SECONDS_TO_EXIT = 10.0
_NO_ANSWER = '{"error": "its process ended: spool/wandb.log may have the reason"}'


class WandbUnavailable(Exception):
    """W&B cannot take records now; the message fits on a line."""


class WandbRun:
    """Delivers records to the run on W&B, through a process of its own that is started with the first.

    Args:
      target: The run.
      directory: The run directory.
      spool: Where the records come from.
      finish_seconds: How long W&B may take to receive the rest, when the run ends.
      fallback: Whether to keep files where there is no account.

    Attributes:
      progress: How far they have been delivered.
      points_refused: How many points of the records sent last it did not take, because it had them already.
    """

    def __init__(
        self, target: WandbTarget, directory: Path, spool: Spool, finish_seconds: float, fallback: bool = True
    ) -> None:
        self.progress = DeliveryProgress.load(spool.path.with_suffix(".sent.json"), target.server, spool)
        self._target, self._directory, self._spool = target, directory, spool
        self._finish_seconds, self._fallback = finish_seconds, fallback
        self._process: subprocess.Popen[str] | None = None
        self._next_row = 0
        self.points_refused = 0

    def send(self, records: Sequence[Record]) -> None:
        """Delivers records; the last one of a run that has ended waits until W&B has everything.

        Raises:
          Forgotten: It is not known what W&B has: all is sent from the beginning, and W&B skips what it has.
          WandbUnavailable: W&B cannot take them now.
        """
        if self._process is None:
            self._open()
            if self.progress.offset:
                raise Forgotten
        entries = [self._entry(record) for record in records if record["type"] in _SENT]
        self.points_refused = self._ask({"log": entries})["known"]
        if records and records[-1].get("status") in _EXIT_CODES and self._is_last(records[-1]):
            self._ask({"finish": _EXIT_CODES[records[-1]["status"]]})
            self.end(_SECONDS_TO_EXIT)

    def end(self, seconds: float = 0.0) -> None:
        """Ends the process, with a kill after so many seconds; W&B's service ends with it."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(OSError):  # what it did not read
            if process.stdin is not None:
                process.stdin.close()
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()  # not before: another thread may wait for an answer

    def _open(self) -> None:
        target = self._target
        settings: dict[str, Any] = {"id": target.run_id, "project": target.project, "entity": target.entity}
        settings |= {"name": target.name, "mode": target.mode, "directory": str(self._directory)}
        settings |= {"init_seconds": _INIT_SECONDS, "finish_seconds": self._finish_seconds, "fallback": self._fallback}
        self._start()
        answer = self._ask({"open": settings})
        self._next_row = 0
        if answer["reason"] and self.progress.server != "offline":
            self.progress.server = "offline"
            text = "W&B: %s, so the run is kept in %s; to send it: wandb login, then everstep runs sync %s"
            logger.warning(text, answer["reason"], self._directory / "wandb", self._directory)
        self.progress.remote_id = target.run_id

    def _start(self) -> None:
        # By its path, without its folder on sys.path, where files are named after packages. In a session of its own:
        # a Ctrl-C is for the training, which ends this process when it is over.
        command = [sys.executable, "-P", wandb_process.__file__]
        with open(self._spool.path.with_suffix(".log"), "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                encoding="utf-8",
                start_new_session=True,
                env=_environment(),
            )

    def _ask(self, line: Record) -> Record:
        """Returns the answer to a line; a process that reports an error, or does not answer, is ended."""
        process = self._process
        try:
            if process is None or process.stdin is None or process.stdout is None:
                raise OSError("it has ended")
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or _NO_ANSWER)
        except (OSError, ValueError) as error:
            answer = {"error": f"its process ended ({error}): spool/wandb.log may have the reason"}
        if "error" in answer:
            self.end()
            raise WandbUnavailable(redaction.text(answer["error"]))
        return answer

    def _entry(self, record: Record) -> Record:
        """Returns a record in the form that the process takes."""
        kind = record["type"]
        if kind not in _ROWS:
            return {"op": "config" if kind == "params" else kind, "values": record["values"]}
        row, self._next_row = self._next_row, self._next_row + 1
        entry = {"row": row, "step": record["step"], "time": record["time"]}
        if kind == "media":
            files = [str(self._directory / path) for path in record["files"] if not path.endswith(".captions.txt")]
            return {**entry, "op": "media", "name": record["name"], "files": files, "captions": record["captions"]}
        if kind == "histograms":
            return {**entry, "op": "histograms", "values": record["values"]}
        return {**entry, "op": "row", "values": named_values(record)}

    def _is_last(self, record: Record) -> bool:
        return collections.deque(self._spool.records(), maxlen=1) == collections.deque([record])


def spool_of(model_dir: storage.PathLike) -> Spool:
    """Returns the spool of a run directory for W&B."""
    return Spool(Path(model_dir).resolve() / "spool", "wandb")


_SECONDS_TO_COMPLETE_A_FILE = 60.0


class WandbTracker(SpooledTracker):
    """Records a run on W&B: one run there over all attempts, each point once; or in files for later.

    Without an account the run is kept in files, with a warning: `everstep runs sync DIR` sends it later.

    Example:
      tracker = WandbTracker("runs/a", target, params=config.as_dict(), tags={"backend": "jax"})
      tracker.start(0)
      tracker.log(100, {"loss": 0.3}, "train")
      tracker.close()

    Args:
      model_dir: The run directory.
      target: The run on W&B.
      params: The configuration, nested, without secrets; a later attempt's values replace earlier ones.
      tags: What else to know about the run and the attempt.
      words: Further tags, as W&B has them: words.
      notes: The notes of the run.
      close_seconds: How long `close` waits for the rest to be sent.
      delays: How long the thread waits between two deliveries.
    """

    service = "W&B"

    def __init__(
        self,
        model_dir: storage.PathLike,
        target: WandbTarget,
        *,
        params: Mapping[str, Any] | None = None,
        tags: Mapping[str, Any] | None = None,
        words: Sequence[str] = (),
        notes: str = "",
        close_seconds: float = 10.0,
        delays: SendDelays | None = None,
    ) -> None:
        super().__init__(model_dir, spool_of(model_dir), (), close_seconds, delays)
        self._target = target
        self._params = flattened({**(params or {}), "everstep": dict(tags or {})}, _spelled)
        facts = [str(value) for name, value in (tags or {}).items() if name in ("experiment", "backend")]
        self._tags = [word[:_LONGEST_TAG] for word in (*facts, *words)]
        self._notes = notes
        self._run: WandbRun | None = None

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Appends the counts to the spool."""
        made = {name: histogram(array) for name, array in values.items()}
        counted = {name: {"counts": one.counts, "edges": one.edges} for name, one in made.items() if one}
        self._spool.histograms(step, counted)
        self._wake()

    def close(self) -> None:
        """Waits a few seconds for the rest to be sent, logs what is left, and ends W&B's processes."""
        super().close()
        if self._run is not None:
            self._run.end()

    def _prepare(self) -> None:
        """W&B's package is imported by a process of its own."""

    def _target_record(self) -> Record:
        return self._target.record()

    def _describe_run(self) -> None:
        if changed := self._spool.params(self._params):
            self._spool.append({"type": "params", "values": {name: self._params[name] for name in changed}})
        if self._tags:
            self._spool.append({"type": "tags", "values": self._tags})
        if self._notes:
            self._spool.append({"type": "notes", "values": self._notes})

    def _connected(self) -> Delivery:
        self._run = WandbRun(self._target, self._directory, self._spool, self._close_seconds)
        return Delivery(self._spool, self._run.progress, self._run)

    def _label(self) -> str:
        return "W&B"

    def _patience(self, status: Status) -> float:
        """A file is complete in a moment, once the process has started: a finished run waits for it."""
        patient = status == "finished" and self._target.mode == "offline"
        return _SECONDS_TO_COMPLETE_A_FILE if patient else self._close_seconds


def _spelled(value: Any) -> Any:
    """Returns a value as JSON allows it."""
    if isinstance(value, bool | int | str | None) or (isinstance(value, float) and np.isfinite(value)):
        return value
    return [_spelled(one) for one in value] if isinstance(value, list | tuple) else str(value)
