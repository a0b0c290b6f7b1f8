"""Trackers of other packages, found by their entry points; a configuration names them, and names no code.

A package offers one in its `pyproject.toml`:

    [project.entry-points."everstep.trackers"]
    chat = "my_package.chat:ChatTracker"

and `trainer.tracking.others: {chat: {channel: runs}}` has `ChatTracker(run, channel="runs")` called for each attempt,
where `run` is a `TrackedRun`. It returns a `Tracker`.
"""

import dataclasses
import logging
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from everstep import redaction
from everstep.entry_points import entry_points
from everstep.errors import UsageError, nearest, problems_under
from everstep.tracking.tracker import ForwardingTracker, LogKind, Tracker

logger = logging.getLogger(__name__)

ENTRY_POINTS = "everstep.trackers"
"""The group of the entry points."""


@dataclasses.dataclass(frozen=True)
class TrackedRun:
    """What a tracker receives about the run.

    Attributes:
      directory: The run directory; a tracker writes its files into a folder of its own name there.
      id: The same over all attempts.
      experiment: The name of the experiment.
      backend: The Keras backend.
      attempt: Which attempt this is, from 1 on.
      config: The experiment's configuration, nested, without secrets.
      name: What the run is called.
      tags: Its tags, without secrets; words have an empty value.
      notes: Its notes, without secrets.
    """

    directory: Path
    id: str
    experiment: str
    backend: str
    attempt: int
    config: Mapping[str, Any]
    name: str = ""
    tags: Mapping[str, str] = dataclasses.field(default_factory=dict)
    notes: str = ""


def make_trackers(configured: Mapping[str, Mapping[str, Any]], run: TrackedRun) -> list[Tracker]:
    """Returns the trackers that a configuration names, each guarded: it cannot end the run.

    Args:
      configured: Settings by the name of the entry point.
      run: The run; the first argument of each.

    Raises:
      UsageError: There is none of that name, or it cannot be created.
    """
    points = find_trackers(configured)
    return [GuardedTracker(name, _create(points[name], settings, run)) for name, settings in configured.items()]


def installed_trackers() -> dict[str, Any]:
    """Returns the entry points of all installed trackers by name; loads none of them."""
    return {point.name: point for point in entry_points(ENTRY_POINTS)}


def find_trackers(names: Collection[str]) -> dict[str, Any]:
    """Returns the entry points of these names; loads none of them.

    Raises:
      UsageError: One is not installed.
    """
    if not names:  # looking through all installed packages takes a while
        return {}
    points = installed_trackers()
    for name in names:
        if name not in points:
            raise UsageError(
                f"no tracker of that name is installed ({ENTRY_POINTS})",
                key=f"trainer.tracking.others.{name}",
                received=name,
                remedy=nearest(name, points) if points else "no installed package provides trackers",
            )
    return points


def _create(point: Any, settings: Mapping[str, Any], run: TrackedRun) -> Tracker:
    key = f"trainer.tracking.others.{point.name}"
    try:
        tracker = point.load()(run, **settings)
    except UsageError as error:
        raise UsageError(problems_under(key, error)) from error
    except Exception as error:
        raise UsageError(
            f"{point.value} cannot be created: {type(error).__name__}: {redaction.text(str(error))}",
            key=key,
            received=dict(settings),
            remedy="check its settings, or remove it",
        ) from error
    if not isinstance(tracker, Tracker):
        raise UsageError(
            f"{point.value} created a {type(tracker).__name__}",
            key=key,
            remedy="derive it from everstep.tracking.tracker.Tracker",
        )
    return tracker


class GuardedTracker(ForwardingTracker):
    """A tracker of another package: when it fails, its traceback is logged, and it is not called again.

    Telemetry never ends a run; but a bug must not be overlooked, so it is logged once more when the run ends. Two
    errors are no bugs: OSError (a disk or a network that fails now: it is called again), and UsageError in `start`.

    Args:
      name: What the configuration calls it.
      tracker: The tracker.
    """

    def __init__(self, name: str, tracker: Tracker) -> None:
        self._name, self._tracker = name, tracker
        self._step = 0
        self._failed = ""

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Passes the numbers on, in a mapping of its own."""
        super().log(step, dict(logs), kind)

    def forward(self, method: str, *args: Any) -> None:
        """Calls the tracker, unless it has failed before."""
        if self._failed:
            return
        self._step = args[0] if args else self._step
        try:
            getattr(self._tracker, method)(*args)
        except OSError:
            raise
        except Exception as error:
            if isinstance(error, UsageError) and method == "start":
                raise
            self._failed = f"step {self._step}, where its {method} failed"
            text = "tracker %r failed in %s at step %d: it is disabled, training continues"
            logger.exception(text, self._name, method, self._step)

    def close(self) -> None:
        """Closes the tracker, also after it has failed: it may hold files."""
        if not self._failed:
            self.forward("close")
            return
        try:
            self._tracker.close()
        except Exception as error:
            logger.debug("tracker %r cannot be closed: %s", self._name, error)
        logger.error("tracker %r has recorded nothing since %s", self._name, self._failed)
