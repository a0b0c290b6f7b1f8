"""One TensorBoard event file of an attempt: whole events, each handed to the system at once."""

import io
import os
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from everstep.data.record_frames import whole_frames
from everstep.tracking.appending import append


class EventFile:
    """A file of events in `directory`, made with the first of them; another reader may follow it.

    Args:
      directory: One TensorBoard run.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def write(self, step: int, values: Sequence[Any]) -> None:
        """Writes one event with all of `values`."""
        opening = [] if self._descriptor is not None else [Event(file_version="brain.Event:2")]
        text = io.BytesIO()
        for event in (*opening, Event(step=step, summary=Summary(value=values))):
            event.wall_time = time.time()
            RecordWriter(text).write(event.SerializeToString())
        append(self._open(), text.getvalue())

    def close(self) -> None:
        """Closes the file; the next event opens another."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> int:
        if self._descriptor is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            seconds, nanoseconds = divmod(time.time_ns(), 10**9)  # later ones sort behind: TensorBoard reads in order
            name = f"events.out.tfevents.{seconds:010d}.{nanoseconds:09d}.{socket.gethostname()}.{os.getpid()}"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._descriptor = os.open(self._directory / name, flags, 0o666)
        return self._descriptor


def last_step(directory: Path) -> int:
    """Returns the last step in the event files of a folder, -1 for none; what a kill left unfinished does not count."""
    return max((event.step for path in directory.glob("*tfevents*") for event in _events(path)), default=-1)


def _events(path: Path) -> Iterator[Any]:
    data = path.read_bytes()
    for frame in whole_frames(path)[0]:
        event = Event.FromString(data[frame.data : frame.data + frame.length])
        if event.HasField("summary"):
            yield event
