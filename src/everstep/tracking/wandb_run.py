"""The run on Weights & Biases: one per everstep run, over all attempts.

W&B numbers the rows of a run, and takes them in order. A record of the spool that makes a row has the same number for
ever, its place among such records; a run that is resumed says which row comes next, and what is before it is left
out. So each row arrives once, whatever was on its way when a process was killed.

Files for later (`offline`) are written anew by each attempt, from the first row on: the newest folder below
`MODEL_DIR/wandb` has the whole run.
"""

import collections
import contextlib
import json
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from everstep import redaction, storage
from everstep.tracking import wandb_process
from everstep.tracking.sender import Forgotten, Progress
from everstep.tracking.spool import Record, Spool, named_values
from everstep.tracking.wandb_environment import environment
from everstep.tracking.wandb_target import WandbTarget

logger = logging.getLogger(__name__)

_EXIT_CODES = {"finished": 0, "failed": 1, "interrupted": 255}  # W&B calls a run that ended with 255 killed
_ROWS = ("metrics", "media", "histograms")
_INIT_SECONDS = 30.0
_SECONDS_TO_EXIT = 10.0
_NO_ANSWER = '{"error": "its process ended: spool/wandb.log may say why"}'


class Unavailable(Exception):
    """W&B takes nothing now; the message fits on a line."""


class WandbRun:
    """Delivers records to the run on W&B, through a process of its own that is started with the first.

    Args:
      target: The run.
      directory: The run directory.
      spool: Where the records come from.
      finish_seconds: How long W&B may take to get the rest, when the run ends.
      fallback: Whether to keep files where there is no account.

    Attributes:
      progress: How far they have been delivered.
      points_refused: How many points of the records sent last it did not take, because it had them already.
    """

    def __init__(
        self, target: WandbTarget, directory: Path, spool: Spool, finish_seconds: float, fallback: bool = True
    ) -> None:
        self.progress = Progress.load(spool.path.with_suffix(".sent.json"), target.server, spool)
        self._target, self._directory, self._spool = target, directory, spool
        self._finish_seconds, self._fallback = finish_seconds, fallback
        self._process: subprocess.Popen[str] | None = None
        self._next_row = 0
        self.points_refused = 0

    def send(self, records: Sequence[Record]) -> None:
        """Delivers records; the last one of a run that has ended waits until W&B has everything.

        Raises:
          Forgotten: It is not known what W&B has: all is sent from the beginning, and what it has is left out.
          Unavailable: It is not possible now.
        """
        if self._process is None:
            self._open()
            if self.progress.offset:
                raise Forgotten
        self.points_refused = self._ask({"log": [self._entry(record) for record in records if _is_shown(record)]})[
            "known"
        ]
        if records and records[-1].get("status") in _EXIT_CODES and self._is_last(records[-1]):
            self._ask({"finish": _EXIT_CODES[records[-1]["status"]]})
            self.end(_SECONDS_TO_EXIT)

    def end(self, seconds: float = 0.0) -> None:
        """Ends the process, whatever it is doing after so many seconds; W&B's service ends with it."""
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
            process.stdout.close()  # not before: somebody may wait for an answer

    def _open(self) -> None:
        target = self._target
        asked: dict[str, Any] = {"id": target.run_id, "project": target.project, "entity": target.entity}
        asked |= {"name": target.name, "mode": target.mode, "directory": str(self._directory)}
        asked |= {"init_seconds": _INIT_SECONDS, "finish_seconds": self._finish_seconds, "fallback": self._fallback}
        self._start()
        answer = self._ask({"open": asked})
        self._next_row = 0
        if answer["reason"] and self.progress.server != "offline":
            self.progress.server = "offline"
            text = "W&B: %s, so the run is kept in %s; to send it: wandb login, then everstep runs sync %s"
            logger.warning(text, answer["reason"], self._directory / "wandb", self._directory)
        self.progress.remote_id = target.run_id

    def _start(self) -> None:
        # By its path, without the folder it is in, where files are named after packages. In a session of its own: a
        # Ctrl-C is meant for the training, which tells this process when it is over.
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
                env=environment(),
            )

    def _ask(self, line: Record) -> Record:
        """Returns the answer to a line; a process that says that it cannot, or does not answer, is started anew."""
        process = self._process
        try:
            if process is None or process.stdin is None or process.stdout is None:
                raise OSError("it has ended")
            process.stdin.write(json.dumps(line) + "\n")
            process.stdin.flush()
            answer = json.loads(process.stdout.readline() or _NO_ANSWER)
        except (OSError, ValueError) as error:
            answer = {"error": f"its process ended ({error}): spool/wandb.log may say why"}
        if "error" in answer:
            self.end()
            raise Unavailable(redaction.text(answer["error"]))
        return answer

    def _entry(self, record: Record) -> Record:
        """Returns a record as the process is told of it."""
        kind = record["type"]
        if kind not in _ROWS:
            return {"op": "config" if kind == "params" else "tags", "values": record["values"]}
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


def _is_shown(record: Record) -> bool:
    return record["type"] in (*_ROWS, "params", "tags")
