"""The metrics of a run as they come in, for a display: the newest points, the best so far, steps per second."""

import collections
import dataclasses
import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from everstep.tracking.history import read_history
from everstep.tracking.metric_names import SIDE_FIGURES, bare, direction, of_validation
from everstep.tracking.tracker import LogKind

TREND = 24
"""Points of a trend that are kept."""

Point = tuple[int, float]


@dataclasses.dataclass
class MetricHistory:
    """One metric over training and validation.

    Attributes:
      name: Its name, without the prefix for training or validation.
      better: `higher` or `lower`; None where the name does not imply it.
      points: The newest points of each kind.
      bests: Of each kind every point that was the best when it came; the last one is the best so far.
    """

    name: str
    better: str | None
    points: dict[LogKind, collections.deque[Point]] = dataclasses.field(default_factory=dict)
    bests: dict[LogKind, list[Point]] = dataclasses.field(default_factory=dict)

    def add(self, step: int, value: float, kind: LogKind) -> None:
        """Adds a point."""
        self.points.setdefault(kind, collections.deque(maxlen=TREND)).append((step, value))
        bests = self.bests.setdefault(kind, [])
        if self.better and math.isfinite(value) and (not bests or self._is_better(value, bests[-1][1])):
            bests.append((step, value))

    def cut(self, step: int) -> None:
        """Drops what came after a step, which is run again."""
        for kind, points in self.points.items():
            kept = [point for point in points if point[0] <= step]
            self.points[kind] = collections.deque(kept, maxlen=TREND)
        self.bests = {kind: [best for best in bests if best[0] <= step] for kind, bests in self.bests.items()}

    def last(self, kind: LogKind) -> float | None:
        """Returns the newest value of a kind."""
        points = self.points.get(kind)
        return points[-1][1] if points else None

    @property
    def best(self) -> Point | None:
        """The best step and value: of validation where there is any, else of training."""
        bests = self.bests["validation" if self.points.get("validation") else "train"] if self.points else []
        return bests[-1] if bests else None

    @property
    def trend(self) -> list[float]:
        """The newest values: of validation once there are a few, else of training."""
        points = self.points.get("validation") or ()
        points = points if len(points) > 2 else self.points.get("train") or points
        return [value for _, value in points]

    def _is_better(self, value: float, best: float) -> bool:
        return value > best if self.better == "higher" else value < best


class LiveMetrics:
    """All metrics of a run, in the order of their first appearance, without figures of speed.

    Attributes:
      by_name: The metrics.
      rates: The last figures of speed, by name, and the learning rate.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, MetricHistory] = {}
        self.rates: dict[str, float] = {}

    def add(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Adds the logs of a window or an evaluation, which are one level deep."""
        for name, value in logs.items():
            if name in SIDE_FIGURES:
                self.rates[name] = value
            else:
                self._metric(name).add(step, value, kind)

    def all(self) -> list[MetricHistory]:
        """Returns the metrics, in their order."""
        return list(self.by_name.values())

    def cut(self, step: int) -> None:
        """Drops what came after a step."""
        for metric in self.by_name.values():
            metric.cut(step)

    def read(self, history: Path, validation: frozenset[str] = frozenset()) -> None:
        """Adds what a `history.csv` has; one that cannot be read is ignored.

        Args:
          history: The file; a last line that is not whole does not count.
          validation: Plain names that only evaluations use.
        """
        self.add_rows(read_history(history)[1], validation)

    def add_rows(self, rows: Iterable[tuple[int, Mapping[str, str]]], validation: frozenset[str] = frozenset()) -> None:
        """Adds rows of a `history.csv`: the step and the cells of each.

        Args:
          rows: The rows, in their order.
          validation: Plain names that only evaluations use.
        """
        known: dict[str, tuple[MetricHistory | None, LogKind]] = {}  # what a column belongs to
        for step, cells in rows:
            for name, cell in cells.items():
                if name not in known:
                    kind: LogKind = "validation" if of_validation(name) or name in validation else "train"
                    known[name] = None if name in SIDE_FIGURES else self._metric(name), kind
                metric, kind = known[name]
                if (value := _float(cell)) is None:
                    continue
                if metric is None:
                    self.rates[name] = value
                else:
                    metric.add(step, value, kind)

    def copy(self) -> "LiveMetrics":
        """Returns a copy that further points do not change."""
        copied = LiveMetrics()
        copied.rates = dict(self.rates)
        for name, metric in self.by_name.items():
            points = {kind: collections.deque(held, maxlen=TREND) for kind, held in metric.points.items()}
            bests = {kind: list(held) for kind, held in metric.bests.items()}
            copied.by_name[name] = dataclasses.replace(metric, points=points, bests=bests)
        return copied

    def _metric(self, name: str) -> MetricHistory:
        short = bare(name)
        return self.by_name.get(short) or self.by_name.setdefault(short, MetricHistory(short, direction(short)))


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


_RATE_SECONDS = 30.0


class LiveRate:
    """Steps per second over about the last half minute, from observations of the step at any times.

    Only observations of a new step count: before the first one the program is compiled, and a step that takes minutes
    is not slower for being observed in between.
    """

    def __init__(self) -> None:
        self._observed: collections.deque[tuple[float, int]] = collections.deque()
        self._step: int | None = None
        self._seen = self._rested = 0.0

    def at(self, now: float, step: int, resting: bool = False) -> float | None:
        """Returns the rate; None while it is unknown.

        Args:
          now: Seconds.
          step: Steps done.
          resting: Whether the run does something else than training, such as evaluating; that time does not count.
        """
        self._rested += now - self._seen if resting else 0.0
        self._seen = now
        if self._step is None or step < self._step:  # a start, or a rollback
            self._observed.clear()
        elif step > self._step:
            self._observed.append((now - self._rested, step))
        self._step = step
        return self._rate()

    def _rate(self) -> float | None:
        observed = self._observed
        while len(observed) > 2 and observed[-1][0] - observed[0][0] > _RATE_SECONDS:
            observed.popleft()
        if len(observed) < 2 or observed[-1][0] <= observed[0][0]:
            return None
        return (observed[-1][1] - observed[0][1]) / (observed[-1][0] - observed[0][0])
