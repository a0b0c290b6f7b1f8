"""The interface of trackers, and the trackers that need no sink.

The controller calls `start` once per attempt, `log` at the end of each logging window and evaluation, `flush`
before a checkpoint is committed, and `close` when the attempt ends, however it ends.

`run/trackers.py` creates the trackers of a run; a new one is added there.
"""

import abc
import dataclasses
import functools
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from everstep import redaction
from everstep.types import Logs

logger = logging.getLogger(__name__)

LogKind = Literal["train", "validation", "system"]
"""What the numbers are about: a window of training, an evaluation, or the machine at some moment (`system/…`)."""


class Tracker(abc.ABC):
    """One sink for the logs of a run.

    Every number is accepted: NaN and infinities are recorded as such. Images, texts and histograms are optional: by
    default a tracker ignores them.

    Example:
      tracker.start(restored_step)
      tracker.log(100, {"loss": 0.3}, "train")
      tracker.log(100, {"validation_loss": 0.4}, "validation")
      tracker.close()
    """

    @abc.abstractmethod
    def start(self, step: int) -> None:
        """Begins an attempt at `step`, the step restored (0 for a fresh run).

        What an earlier attempt recorded beyond it is dropped: those steps will be run and logged again.
        """

    @abc.abstractmethod
    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Records `logs` at `step`. Steps never decrease within an attempt."""

    def log_images(  # noqa: B027
        self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]
    ) -> None:
        """Records images of an evaluation at `step`: bytes, (h, w) or (h, w, 3 or 4), each with its caption."""

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:  # noqa: B027
        """Records texts of an evaluation at `step`."""

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Records histograms of arrays at `step`; the tracker may keep the arrays."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Makes what was logged visible to readers, and safe from a kill."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flushes and closes files; closing twice is fine."""


class NoopTracker(Tracker):
    """Tracking switched off."""

    def start(self, step: int) -> None:
        """Starts nothing: an attempt without trackers leaves no trace."""

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Drops the logs."""

    def flush(self) -> None:
        """Has nothing to flush."""

    def close(self) -> None:
        """Has nothing to close."""


class ForwardingTracker(Tracker):
    """A tracker that passes every call on to others, by `forward`."""

    @abc.abstractmethod
    def forward(self, method: str, *args: Any) -> None:
        """Passes a call of `method` on."""

    def start(self, step: int) -> None:
        """Begins an attempt at `step` in every tracker behind this one."""
        self.forward("start", step)

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Passes the numbers of a window, an evaluation or the machine on."""
        self.forward("log", step, logs, kind)

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Passes images of an evaluation on, with their captions."""
        self.forward("log_images", step, name, images, captions)

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Passes texts of an evaluation on."""
        self.forward("log_text", step, name, texts)

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Passes arrays on, for histograms."""
        self.forward("log_histograms", step, values)

    def flush(self) -> None:
        """Has every tracker behind this one write what it was given."""
        self.forward("flush")


class MultiTracker(ForwardingTracker):
    """Several trackers as one, called in the order given.

    A full or missing disk does not stop training: when a tracker raises OSError, a warning is logged once, the others
    are called as usual, and so is this one the next time. So a tracker that raises OSError keeps what it could not
    write for its next call.
    """

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self.trackers = tuple(trackers)
        self._failing: set[Tracker] = set()

    def forward(self, method: str, *args: Any) -> None:
        """Calls all of them, and logs which cannot write, and after a flush which can write again."""
        for tracker in self.trackers:
            name = type(tracker).__name__
            try:
                getattr(tracker, method)(*args)
            except OSError as error:
                if tracker not in self._failing:
                    self._failing.add(tracker)
                    logger.warning("%s cannot write (%s); it will retry, training continues", name, error)
            else:
                if method == "flush" and tracker in self._failing:
                    self._failing.remove(tracker)
                    logger.warning("%s can write again: nothing is missing", name)

    def close(self) -> None:
        """Closes every one, also after one has failed; then raises errors that are not of the disk.

        Raises:
          Exception: The error of the one that failed.
          ExceptionGroup: The errors, when several failed.
        """
        errors = []
        for tracker in self.trackers:
            try:
                tracker.close()
            except OSError as error:
                logger.error("%s could not write all it had: %s", type(tracker).__name__, error)
            except Exception as error:
                errors.append(error)
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("trackers could not be closed", errors)


class BackgroundTracker(ForwardingTracker):
    """Another tracker, called by a thread of its own, in order.

    `start`, `flush` and `close` wait until all calls are done. What the other tracker raised is raised by the next
    call: nothing is lost silently.

    Args:
      tracker: The tracker that does the work.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def forward(self, method: str, *args: Any) -> None:
        """Queues a call, whose arguments must not change any more.

        Figures of the machine come from another thread; errors are raised on the training thread only.
        """
        if args[-1:] != ("system",):
            self._raise()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="everstep-tracking", daemon=True)
            self._thread.start()
        self._calls.put(functools.partial(getattr(self._tracker, method), *args))
        if method in ("start", "flush"):
            self._calls.join()
            self._raise()

    def close(self) -> None:
        """Waits until everything is written, and ends the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None
        self._tracker.close()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:  # raised where the next call is made
                self._error = self._error or error
            finally:
                self._calls.task_done()
        self._calls.task_done()


@dataclasses.dataclass(frozen=True)
class Point:
    """One call of `Tracker.log`."""

    step: int
    logs: Logs
    kind: LogKind


class MemoryTracker(Tracker):
    """Keeps every point in a list, for tests.

    Attributes:
      points: What was logged, oldest first.
      starts: The step of each `start`.
      closed: Whether `close` was called.
    """

    def __init__(self) -> None:
        self.points: list[Point] = []
        self.starts: list[int] = []
        self.closed = False

    def start(self, step: int) -> None:
        """Drops the points beyond `step`."""
        self.starts.append(step)
        self.points = [point for point in self.points if point.step <= step]
        self.closed = False

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Appends a point."""
        self.points.append(Point(step, plain(logs), kind))

    def flush(self) -> None:
        """Is not needed: points in memory are visible at once."""

    def close(self) -> None:
        """Sets `closed`."""
        self.closed = True


def plain(logs: Mapping[str, float]) -> Logs:
    """Returns the logs as plain floats, whatever scalars the backend uses; secrets in names are redacted.

    Nested logs become one level: `{"a": {"b": 1}}` is `{"a|b": 1.0}`.
    """
    flat: Logs = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            flat |= plain({f"{name}|{key}": held for key, held in value.items()})
        else:
            flat[redaction.name(name)] = float(value)
    return flat
