"""TensorBoard event files, written without TensorFlow.

TensorBoard's own `SummaryWriter` imports TensorFlow whenever it is installed, which costs seconds and lets it
take the GPU from another backend. An event file is a sequence of framed protocol buffers; TensorBoard ships
both, and that is all this file uses.
"""

import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from everstep import storage
from everstep.tracking.tracker import Kind, Tracker, plain

_FLUSH_SECONDS = 2.0
_file_numbers = itertools.count()


class TensorBoardTracker(Tracker):
    """Writes scalars to `train/` and `validation/` under a directory, one TensorBoard run each.

    Tags are the names in the logs, so that training and validation curves of one name share a chart. Files
    appear with the first number, and can be read while training.

    Args:
      directory: The run directory.
      validation_subdir: Where evaluations go.
      clock: Seconds; decides only when to flush.
    """

    def __init__(
        self,
        directory: storage.PathLike,
        validation_subdir: str = "validation",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        root = Path(directory)
        self._files: dict[Kind, EventFile] = {
            "train": EventFile(root / "train"),
            "validation": EventFile(root / validation_subdir),
        }
        self._clock = clock
        self._flushed = clock()

    def start(self, step: int) -> None:
        """Lets TensorBoard forget the steps beyond `step`, as soon as there is something new to show."""
        for file in self._files.values():
            file.close()
            file.restart(step)

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Writes one event with all of `logs`."""
        self._files[kind].write(step, logs)
        if self._clock() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Hands the events to the operating system, where TensorBoard sees them."""
        self._flushed = self._clock()
        for file in self._files.values():
            file.flush()

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()


class EventFile:
    """One event file in `directory`, created when there is something to write."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._records: RecordWriter | None = None
        self._purge_step: int | None = None

    def restart(self, step: int) -> None:
        """Makes the next file begin with the order to drop what was recorded beyond `step`."""
        if step > 0 or any(self._directory.glob("*tfevents*")):
            # TensorBoard drops from this step on; at 0 nothing was restored, so all goes.
            self._purge_step = step + 1 if step > 0 else 0

    def write(self, step: int, logs: Mapping[str, float]) -> None:
        """Writes `logs` as scalars at `step`."""
        values = [Summary.Value(tag=name, simple_value=value) for name, value in plain(logs).items()]
        self._write(Event(step=step, summary=Summary(value=values)))

    def flush(self) -> None:
        """Hands what was written to the operating system."""
        if self._records is not None:
            self._records.flush()

    def close(self) -> None:
        """Closes the file; the next number opens another."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def _write(self, event: Event) -> None:
        event.wall_time = time.time()
        if self._records is None:
            self._records = self._open(event.step)
        self._records.write(event.SerializeToString())

    def _open(self, first: int) -> RecordWriter:
        self._directory.mkdir(parents=True, exist_ok=True)
        file = (self._directory / _file_name()).open("xb")
        records = RecordWriter(file)
        for event in self._opening(first):
            records.write(event.SerializeToString())
        return records

    def _opening(self, first: int) -> list[Event]:
        events = [Event(wall_time=time.time(), file_version="brain.Event:2")]
        if self._purge_step is not None:
            start = SessionLog(status=SessionLog.START)
            # What is done once more at the step restored, a broken evaluation say, replaces what was there.
            purge_step = min(self._purge_step, first)
            events.append(Event(wall_time=time.time(), step=purge_step, session_log=start))
            self._purge_step = None
        return events


def _file_name() -> str:
    """Returns a name that sorts after every earlier one: TensorBoard reads a run's files in that order."""
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    writer = f"{socket.gethostname()}.{os.getpid()}.{next(_file_numbers)}"
    return f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{writer}"
