"""The files by which people and pipelines know a job, beside those of its run directory.

job_meta.json          how many epochs are done, and their checkpoint: {"last_epoch": 3, "last_checkpoint": "00003"}
epochs/00003.json      which checkpoint is that of an epoch: {"epoch": 3, "step": 12, "checkpoint": "checkpoints/12"}
logs/                  TensorBoard, epoch by epoch

They follow from what is saved, are written after it, and never read back: a kill in between leaves them behind by an
epoch, and the next attempt catches up.
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint.checkpointer import Checkpointer
from everstep.loop.keras_callbacks import KerasCallbacks
from everstep.training.epoch_log import EpochLog, histograms

logger = logging.getLogger(__name__)


class JobFiles:
    """Keeps a job's files up to date with its checkpoints.

    Args:
      directory: The run directory, on this machine.
      checkpointer: What is saved.
      callbacks: They know the history of all epochs.
    """

    def __init__(self, directory: Path, checkpointer: Checkpointer, callbacks: KerasCallbacks) -> None:
        self._directory, self._checkpointer, self._callbacks = directory, checkpointer, callbacks
        self._ends: dict[int, int] = {}  # the step at which an epoch of this attempt ended, by how many were done then
        self._histograms: dict[int, Mapping[str, Any]] = {}
        self._restored = 0
        self._columns: set[str] = set()
        self._shown = -1
        self._log: EpochLog | None = None

    def begin(self) -> None:
        """Learns how many epochs were done before this attempt, and brings the files up to date."""
        self._restored = len(self._callbacks.history.epoch)
        self._columns = set(self._callbacks.history.history)
        with self._told():
            self._log = EpochLog(self._directory / "logs")
        self.catch_up()

    def epoch_ended(self, step: int) -> None:
        """Notes the end of an epoch, while the model shows its weights."""
        done = len(self._callbacks.history.epoch)
        if done > max(self._ends, default=self._restored):
            self._align(done)
            self._ends[done] = step
            self._histograms[done] = histograms(self._callbacks.model)

    def _align(self, done: int) -> None:
        """Keeps a value per epoch in each column of the history, NaN where an epoch had none: rows are epochs."""
        columns = self._callbacks.history.history
        for name, values in columns.items():
            gap = [math.nan] * (done - len(values))
            values[:] = [*values, *gap] if name in self._columns else [*gap, *values]
        self._columns = set(columns)

    def catch_up(self) -> None:
        """Writes what belongs to the epochs that are saved by now; cheap where that is nothing new."""
        if self._shown >= len(self._callbacks.history.epoch):
            return
        with self._told():
            steps = self._checkpointer.steps()
            done = self._done(steps)
            if done > self._shown:
                self._write_log(done)
                self._write_views(steps, done)
                self._shown = done

    def close(self) -> None:
        """Brings the files up to date, and closes them."""
        self._shown = -1
        self.catch_up()
        if self._log is not None:
            self._log.close()

    def _done(self, steps: list[int]) -> int:
        """Returns how many epochs are saved to their end."""
        newest = max(steps, default=0)
        return max([self._restored, *(done for done, step in self._ends.items() if step <= newest)])

    def _write_log(self, done: int) -> None:
        history = self._callbacks.history
        for number in range(max(self._shown, 0), done):
            numbers = {name: float(values[number]) for name, values in history.history.items() if number < len(values)}
            if self._log is not None:
                self._log.write(number, numbers, self._histograms.pop(number + 1, {}))

    def _write_views(self, steps: list[int], done: int) -> None:
        views = {f"{number:05d}": step for number, step in self._epoch_steps(steps) if number <= done}
        folder = self._directory / "epochs"
        folder.mkdir(parents=True, exist_ok=True)
        for name, step in views.items():
            content = {"epoch": int(name), "step": step, "checkpoint": f"checkpoints/{step}"}
            if not (folder / f"{name}.json").exists():
                storage.write_json(folder / f"{name}.json", content)
        for path in folder.glob("*.json"):
            if path.stem not in views:
                path.unlink()
        last = f"{done:05d}" if f"{done:05d}" in views else max(views, default="")
        storage.write_json(self._directory / "job_meta.json", {"last_epoch": done, "last_checkpoint": last})

    def _epoch_steps(self, steps: list[int]) -> Iterator[tuple[int, int]]:
        """Yields the epochs that have a checkpoint, with its step; one that a callback cut short has its own length."""
        ends = {step: done for done, step in self._ends.items()}
        for step in steps:
            if step in ends or (step and step % self._callbacks.steps == 0):
                yield ends.get(step, step // self._callbacks.steps), step

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        """A disk that does not take them is no reason to stop: all that counts is in the checkpoints."""
        try:
            yield
        except OSError as error:
            logger.warning("the files of the job in %s are behind: %s", self._directory, error.strerror or error)
