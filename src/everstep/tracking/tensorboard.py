"""TensorBoard event files, written without TensorFlow.

TensorBoard's own `SummaryWriter` imports TensorFlow whenever it is installed, which costs seconds and lets it
take the GPU from another backend. An event file is a sequence of framed protocol buffers; TensorBoard ships
both, and that is all this file uses.
"""

import io
import itertools
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from everstep import storage
from everstep.tracking.appending import append
from everstep.tracking.tensorboard_values import histogram_value, image_values, text_value
from everstep.tracking.tracker import Kind, Tracker, plain

_FLUSH_SECONDS = 2.0
_file_numbers = itertools.count()


class TensorBoardTracker(Tracker):
    """Writes scalars to `train/` and `validation/` under a directory, one TensorBoard run each.

    Histograms, and what a machine says of itself, go to `train/`; pictures and texts of evaluations to `validation/`.
    Tags are the names in the logs, so that training and validation curves of one name share a chart. Files appear with
    the first number, and can be read while training. A call that the disk fails raises OSError, and what it could not
    write goes with the next flush.

    Args:
      directory: The run directory.
      validation_subdir: Where evaluations go.
      train_subdir: Where the rest goes.
      clock: Seconds; decides only when to flush.
    """

    def __init__(
        self,
        directory: storage.PathLike,
        validation_subdir: str = "validation",
        clock: Callable[[], float] = time.monotonic,
        train_subdir: str = "train",
    ) -> None:
        root = Path(directory)
        self._files: dict[Kind, EventFile] = {
            "train": EventFile(root / train_subdir),
            "validation": EventFile(root / validation_subdir),
        }
        self._clock = clock
        self._flushed = clock()

    def start(self, step: int) -> None:
        """Lets TensorBoard forget the steps beyond `step`, as soon as there is something new to show."""
        for file in self._files.values():
            file.restart(step)

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Writes one event with all of `logs`."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in plain(logs).items()]
        self._write("train" if kind == "system" else kind, step, values)

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Writes pictures, `name/0` and so on; TensorBoard has no captions for them, so they are a text beside."""
        self._write("validation", step, image_values(name, images, captions))

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Writes texts as one tag."""
        self._write("validation", step, [text_value(name, texts)])

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Writes a histogram for each array."""
        made = (histogram_value(name, array) for name, array in values.items())
        self._write("train", step, [value for value in made if value is not None])

    def _write(self, kind: Kind, step: int, values: Sequence[Any]) -> None:
        self._files[kind].write(step, values)
        if self._clock() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hands the events to the operating system, where TensorBoard sees them."""
        self._flushed = self._clock()
        _each(file.flush for file in self._files.values())

    def close(self) -> None:
        """Closes the files."""
        _each(file.close for file in self._files.values())


class EventFile:
    """One event file in `directory`, created when there is something to write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None
        self._begun = False  # whether the file, written or not, has its first event
        self._unwritten = io.BytesIO()
        self._purge_step: int | None = None

    def restart(self, step: int) -> None:
        """Makes the next event follow the order to drop what was recorded beyond `step`."""
        if step > 0 or self._begun or any(self._directory.glob("*tfevents*")):
            # TensorBoard drops from this step on; at 0 nothing was restored, so all goes.
            self._purge_step = step + 1 if step > 0 else 0

    def write(self, step: int, values: Sequence[Any]) -> None:
        """Writes an event with these `Summary.Value`s at `step`; it reaches the file at the next flush."""
        for event in (*self._opening(step), Event(step=step, summary=Summary(value=values))):
            event.wall_time = time.time()
            RecordWriter(self._unwritten).write(event.SerializeToString())
        self._open()

    def flush(self) -> None:
        """Hands what was written to the operating system; what it does not take is kept."""
        if data := self._unwritten.getvalue():
            append(self._open(), data)
            self._unwritten = io.BytesIO()

    def close(self) -> None:
        """Closes the file; the next number opens another."""
        try:
            self.flush()
        finally:
            self._unwritten, self._begun = io.BytesIO(), False
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._descriptor = os.open(self._directory / _file_name(), flags, 0o666)
        return self._descriptor

    def _opening(self, first: int) -> Iterator[Event]:
        """Yields what must stand before an event at step `first`."""
        if not self._begun:
            self._begun = True
            yield Event(file_version="brain.Event:2")
            if self._purge_step is None and not any(self._directory.glob("*tfevents*")):
                # TensorBoard takes only a second one for a restart.
                yield Event(session_log=SessionLog(status=SessionLog.START))
        if self._purge_step is not None:
            # What is done once more at the step restored, a broken evaluation say, replaces what was there.
            purge_step, self._purge_step = min(self._purge_step, first), None
            yield Event(step=purge_step, session_log=SessionLog(status=SessionLog.START))


def _each(calls: Iterable[Callable[[], None]]) -> None:
    """Makes every call, also after one has failed; then raises the last error of a disk."""
    failed: OSError | None = None
    for call in calls:
        try:
            call()
        except OSError as error:
            failed = error
    if failed is not None:
        raise failed


def _file_name() -> str:
    """Returns a name that sorts after every earlier one: TensorBoard reads a run's files in that order."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    writer = f"{socket.gethostname()}.{os.getpid()}.{next(_file_numbers)}"
    return f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{writer}"
