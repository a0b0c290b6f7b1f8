"""Trackers of other packages, found by their entry points; a configuration names them, and names no code.

A package offers one in its `pyproject.toml`:

    [project.entry-points."everstep.trackers"]
    chat = "my_package.chat:ChatTracker"

and `trainer.tracking.others: {chat: {channel: runs}}` has `ChatTracker(run, channel="runs")` called for each attempt,
where `run` is a `TrackedRun`. What it returns is a `Tracker`.
"""

import dataclasses
import importlib.metadata
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep import redaction
from everstep.errors import UsageError, nearest
from everstep.tracking.tracker import Kind, Tracker

logger = logging.getLogger(__name__)

ENTRY_POINTS = "everstep.trackers"
"""The group of the entry points."""


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """What a tracker is told of the run.

    Attributes:
      directory: The run directory; files of its own go into a folder named after the tracker.
      id: The same over all attempts.
      experiment: What the experiment is called.
      backend: What computes.
      attempt: Which attempt this is, from 1 on.
      config: The experiment's configuration, nested, without secrets.
    """

    directory: Path
    id: str
    experiment: str
    backend: str
    attempt: int
    config: Mapping[str, Any]


def make_trackers(wanted: Mapping[str, Mapping[str, Any]], run: TrackedRun) -> list[Tracker]:
    """Returns the trackers that a configuration names, each guarded: it cannot end the run.

    Args:
      wanted: Settings by the name of the entry point.
      run: What each is told first.

    Raises:
      UsageError: There is none of that name, or it cannot be made.
    """
    points = find_trackers(wanted)
    return [GuardedTracker(name, _made(points[name], settings, run)) for name, settings in wanted.items()]


def find_trackers(names: Iterable[str]) -> dict[str, Any]:
    """Returns the entry points of these names; loads none of them.

    Raises:
      UsageError: One is not installed.
    """
    points = {point.name: point for point in importlib.metadata.entry_points(group=ENTRY_POINTS)}
    for name in names:
        if name not in points:
            hint = nearest(name, points) if points else "no package here offers any"
            text = f"received {name!r}, but no tracker of that name is installed ({ENTRY_POINTS}): {hint}"
            raise UsageError(f"trainer.tracking.others.{name}: {text}")
    return points


def _made(point: Any, settings: Mapping[str, Any], run: TrackedRun) -> Tracker:
    key = f"trainer.tracking.others.{point.name}"
    try:
        tracker = point.load()(run, **settings)
    except UsageError as error:
        raise UsageError(f"{key}: {error}") from error
    except Exception as error:
        raise UsageError(
            f"{key}: {point.value} cannot be made with {_shown(settings)}: "
            f"{type(error).__name__}: {redaction.text(str(error))}; see its settings, or leave it out"
        ) from error
    if not isinstance(tracker, Tracker):
        raise UsageError(
            f"{key}: {point.value} made a {type(tracker).__name__}, expected an "
            "everstep.tracking.tracker.Tracker: derive it from that class"
        )
    return tracker


def _shown(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in redaction.tree(dict(settings)).items()) or "no settings"


class GuardedTracker(Tracker):
    """Somebody else's tracker: when it fails, that is said with its traceback, and it is not called again.

    Telemetry never ends a run; but a bug is not to be overlooked, so it is said once more when the run ends. Two
    errors are no bugs: OSError (a disk or a network that fails now: it is called again), and UsageError in `start`.

    Args:
      name: What the configuration calls it.
      tracker: The tracker.
    """

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._step = 0
        self._failed = ""

    def start(self, step: int) -> None:
        """Starts it."""
        self._step = step
        self._call("start", lambda: self._tracker.start(step))

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Hands it the numbers, in a mapping of its own."""
        self._step = step
        self._call("log", lambda: self._tracker.log(step, dict(logs), kind))

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Hands it pictures."""
        self._call("log_images", lambda: self._tracker.log_images(step, name, images, captions))

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Hands it texts."""
        self._call("log_text", lambda: self._tracker.log_text(step, name, texts))

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Hands it arrays."""
        self._call("log_histograms", lambda: self._tracker.log_histograms(step, values))

    def flush(self) -> None:
        """Flushes it."""
        self._call("flush", self._tracker.flush)

    def close(self) -> None:
        """Closes it, also after it has failed: it may hold files."""
        if not self._failed:
            self._call("close", self._tracker.close)
            return
        try:
            self._tracker.close()
        except Exception as error:
            logger.debug("tracker %r does not close: %s", self._name, error)
        logger.error("tracker %r has nothing after %s", self._name, self._failed)

    def _call(self, method: str, call: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            call()
        except OSError:
            raise
        except Exception as error:
            if isinstance(error, UsageError) and method == "start":
                raise
            self._failed = f"step {self._step}, where its {method} failed"
            text = "tracker %r failed in %s at step %d: it is switched off, training goes on"
            logger.exception(text, self._name, method, self._step)
