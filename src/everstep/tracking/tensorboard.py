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
from tensorboard.compat.proto.histogram_pb2 import HistogramProto
from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
from tensorboard.compat.proto.tensor_pb2 import TensorProto
from tensorboard.compat.proto.tensor_shape_pb2 import TensorShapeProto
from tensorboard.compat.proto.types_pb2 import DT_STRING
from tensorboard.summary.writer.record_writer import RecordWriter

from everstep import redaction, storage
from everstep.data.formats import whole_frames
from everstep.tracking.appending import append
from everstep.tracking.samples import histogram, png
from everstep.tracking.tracker import LogKind, Tracker, plain


def image_values(name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> list[Any]:
    """Returns a value for each image, and one with the captions."""
    pictures = [
        Summary.Value(
            tag=f"{name}/{number}",
            image=Summary.Image(
                height=image.shape[0],
                width=image.shape[1],
                colorspace=image.shape[2] if image.ndim == 3 else 1,
                encoded_image_string=png(image),
            ),
        )
        for number, image in enumerate(images)
    ]
    numbered = [f"{number}: {caption}" for number, caption in enumerate(captions)]
    return [*pictures, text_value(f"{name}/captions", numbered)] if numbered else pictures


def text_value(name: str, texts: Sequence[str]) -> Any:
    """Returns texts as one value."""
    data = [redaction.text(text).encode("utf-8") for text in texts]
    shape = TensorShapeProto(dim=[TensorShapeProto.Dim(size=len(data))])
    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(
        tag=name, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, tensor_shape=shape, string_val=data)
    )


def histogram_value(name: str, values: np.ndarray) -> Any:
    """Returns the histogram of an array; None where it has no finite number."""
    found = histogram(values)
    if found is None:
        return None
    # TensorBoard's own form names the upper edge of each bucket; the first one begins at `min`.
    proto = HistogramProto(
        min=found.edges[0],
        max=found.edges[-1],
        num=sum(found.counts),
        sum=found.total,
        sum_squares=found.squares,
        bucket_limit=found.edges[1:],
        bucket=found.counts,
    )
    return Summary.Value(tag=name, histo=proto)


_FLUSH_SECONDS = 2.0
_file_numbers = itertools.count()


class TensorBoardTracker(Tracker):
    """Writes scalars to `train/` and `validation/` under a directory, one TensorBoard run each.

    Histograms and figures of the machine are in `train/`, images and texts of evaluations in `validation/`. Tags are
    the names in the logs, so that training and validation curves of one name share a chart. Files appear with the first
    number, and can be read while training. A call that fails to write raises OSError; the next flush writes the rest.

    Args:
      directory: The run directory.
      validation_subdir: The folder of evaluations.
      train_subdir: The folder of everything else.
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
        self._files: dict[LogKind, EventFile] = {
            "train": EventFile(root / train_subdir),
            "validation": EventFile(root / validation_subdir),
        }
        self._clock = clock
        self._flushed = clock()

    def start(self, step: int) -> None:
        """Makes TensorBoard drop the steps beyond `step`, with the next event."""
        for file in self._files.values():
            file.restart(step)

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Writes one event with all of `logs`."""
        values = [scalar_value(name, value) for name, value in plain(logs).items()]
        self._write("train" if kind == "system" else kind, step, values)

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Writes images, `name/0` and so on; TensorBoard has no captions for them, so they are a text beside."""
        self._write("validation", step, image_values(name, images, captions))

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Writes texts as one tag."""
        self._write("validation", step, [text_value(name, texts)])

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Writes a histogram for each array."""
        made = (histogram_value(name, array) for name, array in values.items())
        self._write("train", step, [value for value in made if value is not None])

    def _write(self, kind: LogKind, step: int, values: Sequence[Any]) -> None:
        self._files[kind].write(step, values)
        if self._clock() - self._flushed >= _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Writes the events to the files, where TensorBoard sees them."""
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
        """Precedes the next event by one that makes TensorBoard drop what was recorded beyond `step`."""
        if step > 0 or self._begun or any(self._directory.glob("*tfevents*")):
            # TensorBoard drops from this step on; at 0 nothing was restored, and everything is dropped.
            self._purge_step = step + 1 if step > 0 else 0

    def write(self, step: int, values: Sequence[Any]) -> None:
        """Writes an event with these `Summary.Value`s at `step`; it reaches the file at the next flush."""
        for event in (*self._opening(step), Event(step=step, summary=Summary(value=values))):
            event.wall_time = time.time()
            RecordWriter(self._unwritten).write(event.SerializeToString())
        self._open()

    def flush(self) -> None:
        """Writes the buffered events; what cannot be written stays buffered."""
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
        """Yields the events that must precede one at step `first`."""
        if not self._begun:
            self._begun = True
            yield Event(file_version="brain.Event:2")
            if self._purge_step is None and not any(self._directory.glob("*tfevents*")):
                # TensorBoard treats only a second START as a restart.
                yield Event(session_log=SessionLog(status=SessionLog.START))
        if self._purge_step is not None:
            # What is run again at the restored step, such as an interrupted evaluation, replaces what was there.
            purge_step, self._purge_step = min(self._purge_step, first), None
            yield Event(step=purge_step, session_log=SessionLog(status=SessionLog.START))


def scalar_value(name: str, value: float) -> Any:
    """Returns a number as a `Summary.Value`."""
    return Summary.Value(tag=name, simple_value=value)


def last_step(directory: Path) -> int:
    """Returns the last step in the event files of a folder, -1 for none; what a kill left unfinished does not count."""
    last = -1
    for path in directory.glob("*tfevents*"):
        data = path.read_bytes()
        for frame in whole_frames(path)[0]:
            event = Event.FromString(data[frame.data : frame.data + frame.length])
            if event.HasField("summary"):
                last = max(last, event.step)
    return last


def _each(calls: Iterable[Callable[[], None]]) -> None:
    """Makes every call, also after one has failed; then raises the last OSError."""
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
