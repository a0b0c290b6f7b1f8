"""The metrics of a run as a person follows them: the last values, the best one, and where they are heading."""

import collections
import csv
import dataclasses
import io
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from everstep.tracking.metric_names import SIDE_FIGURES, bare, direction, of_validation
from everstep.tracking.tracker import Kind

TREND = 24
"""Points of a trend that are kept."""

Point = tuple[int, float]


@dataclasses.dataclass
class Metric:
    """One metric over training and validation.

    Attributes:
      name: Without what tells the two apart.
      better: `higher` or `lower`; None where the name does not say.
      points: The newest points of each kind.
      bests: Of each kind every point that was the best when it came; the last one is the best so far.
    """

    name: str
    better: str | None
    points: dict[Kind, collections.deque[Point]] = dataclasses.field(default_factory=dict)
    bests: dict[Kind, list[Point]] = dataclasses.field(default_factory=dict)

    def add(self, step: int, value: float, kind: Kind) -> None:
        """Adds a point."""
        self.points.setdefault(kind, collections.deque(maxlen=TREND)).append((step, value))
        bests = self.bests.setdefault(kind, [])
        if self.better and math.isfinite(value) and (not bests or self._is_better(value, bests[-1][1])):
            bests.append((step, value))

    def cut(self, step: int) -> None:
        """Forgets what came after a step: it is done again."""
        for kind, points in self.points.items():
            kept = [point for point in points if point[0] <= step]
            self.points[kind] = collections.deque(kept, maxlen=TREND)
        self.bests = {kind: [best for best in bests if best[0] <= step] for kind, bests in self.bests.items()}

    def last(self, kind: Kind) -> float | None:
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
    """Every metric of a run, in the order in which they first appeared; figures of speed left out.

    Attributes:
      by_name: The metrics.
      rates: The last figures of speed, by name, and the learning rate.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Metric] = {}
        self.rates: dict[str, float] = {}

    def add(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Adds the logs of a window or an evaluation, which are one level deep."""
        for name, value in logs.items():
            if name in SIDE_FIGURES:
                self.rates[name] = value
            else:
                short = bare(name)
                metric = self.by_name.get(short) or self.by_name.setdefault(short, Metric(short, direction(short)))
                metric.add(step, value, kind)

    def cut(self, step: int) -> None:
        """Forgets what came after a step."""
        for metric in self.by_name.values():
            metric.cut(step)

    def read(self, history: Path, validation: frozenset[str] = frozenset()) -> None:
        """Adds what a `history.csv` has; one that cannot be read is left aside.

        Args:
          history: The file; a last line that is not whole does not count.
          validation: Plain names that only evaluations use.
        """
        for step, logs in _rows(history):
            for name, value in logs.items():
                kind: Kind = "validation" if of_validation(name) or name in validation else "train"
                self.add(step, {name: value}, kind)


def _rows(history: Path) -> Iterator[tuple[int, dict[str, float]]]:
    try:
        text = history.read_text("utf-8", errors="replace")
    except OSError:
        return
    for row in csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline="")):
        step = row.pop("step", None) or ""
        if step.isdecimal() and None not in row:
            yield int(step), {name: number for name, cell in row.items() if (number := _number(cell)) is not None}


def _number(cell: str | None) -> float | None:
    try:
        return float(cell) if cell else None
    except ValueError:
        return None
