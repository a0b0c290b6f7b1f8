"""What the loop says about its progress, and the trackers that need no sink.

The controller calls `start` once per attempt, `log` at the end of each logging window and evaluation, `flush`
before a checkpoint is committed, `close` when the attempt ends however it ends.
"""

import abc
import dataclasses
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import numpy as np

from everstep import redaction
from everstep.types import Logs

logger = logging.getLogger(__name__)

Kind = Literal["train", "validation", "system"]
"""What the numbers are about: a window of training, an evaluation, or the machine at some moment (`system/…`)."""


class Tracker(abc.ABC):
    """One sink for the logs of a run.

    Every number is accepted: NaN and infinities are shown as such, for they are news, not errors. Pictures, texts and
    histograms are for those that can show them: a tracker that says nothing of them is not asked to.

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
    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Records `logs` at `step`. Steps never decrease within an attempt."""

    def log_images(  # noqa: B027
        self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]
    ) -> None:
        """Records pictures of an evaluation at `step`: bytes, (h, w) or (h, w, 3 or 4), each with its caption."""

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:  # noqa: B027
        """Records texts of an evaluation at `step`."""

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Records how the numbers of each array are distributed at `step`; the arrays are nobody else's."""

    @abc.abstractmethod
    def flush(self) -> None:
        """Makes what was logged visible to readers, and safe from a kill."""

    @abc.abstractmethod
    def close(self) -> None:
        """Flushes and lets go of files; closing twice is fine."""


class NoopTracker(Tracker):
    """Tracking switched off."""

    def start(self, step: int) -> None:
        """Does nothing."""

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Does nothing."""

    def flush(self) -> None:
        """Does nothing."""

    def close(self) -> None:
        """Does nothing."""


class MultiTracker(Tracker):
    """Several trackers as one, called in the order given.

    A disk that is full or gone is no reason to stop training, which has its checkpoints to live on: where a tracker
    raises OSError, that is said once, the others go on, and it is called again as if nothing had happened. So a
    tracker that raises OSError keeps what it could not write, for its next call.
    """

    def __init__(self, trackers: Iterable[Tracker]) -> None:
        self.trackers = tuple(trackers)
        self._failing: set[Tracker] = set()

    def start(self, step: int) -> None:
        """Starts all of them."""
        for tracker in self.trackers:
            self._try(tracker, lambda one: one.start(step))

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Logs to all of them."""
        for tracker in self.trackers:
            self._try(tracker, lambda one: one.log(step, logs, kind))

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Shows pictures to all of them."""
        for tracker in self.trackers:
            self._try(tracker, lambda one: one.log_images(step, name, images, captions))

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Shows texts to all of them."""
        for tracker in self.trackers:
            self._try(tracker, lambda one: one.log_text(step, name, texts))

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Shows arrays to all of them."""
        for tracker in self.trackers:
            self._try(tracker, lambda one: one.log_histograms(step, values))

    def flush(self) -> None:
        """Flushes all of them, and says so where one can write again."""
        for tracker in self.trackers:
            if self._try(tracker, lambda one: one.flush()) and tracker in self._failing:
                self._failing.remove(tracker)
                logger.warning("%s can write again: nothing is missing", _label(tracker))

    def close(self) -> None:
        """Closes every one, also after one has failed; then raises what went wrong, other than the disk.

        Raises:
          Exception: The error of the one that failed.
          ExceptionGroup: The errors, when several failed.
        """
        errors = [error for tracker in self.trackers if (error := _failure(tracker))]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("trackers could not be closed", errors)

    def _try(self, tracker: Tracker, call: Callable[[Tracker], None]) -> bool:
        """Returns whether the disk took what a call writes."""
        try:
            call(tracker)
        except OSError as error:
            if tracker not in self._failing:
                self._failing.add(tracker)
                logger.warning("%s cannot write (%s); training goes on, and it tries again", _label(tracker), error)
            return False
        return True


@dataclasses.dataclass(frozen=True)
class Point:
    """One call of `Tracker.log`."""

    step: int
    logs: Logs
    kind: Kind


class MemoryTracker(Tracker):
    """Keeps every point in a list; what tests look at.

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

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Appends a point."""
        self.points.append(Point(step, plain(logs), kind))

    def flush(self) -> None:
        """Does nothing: what is in memory is visible."""

    def close(self) -> None:
        """Remembers that it was called."""
        self.closed = True


def plain(logs: Mapping[str, float]) -> Logs:
    """Returns the logs as plain floats, whatever kind of scalar the backend made them of; names without secrets.

    Logs inside of logs become one level: `{"a": {"b": 1}}` is `{"a|b": 1.0}`.
    """
    flat: Logs = {}
    for name, value in logs.items():
        if isinstance(value, Mapping):
            flat |= plain({f"{name}|{key}": held for key, held in value.items()})
        else:
            flat[redaction.text(name)] = float(value)
    return flat


def _failure(tracker: Tracker) -> Exception | None:
    """Closes a tracker; returns what is worth raising."""
    try:
        tracker.close()
    except OSError as error:
        logger.error("%s could not write all it had: %s", _label(tracker), error)
    except Exception as error:
        return error
    return None


def _label(tracker: Tracker) -> str:
    return type(tracker).__name__
