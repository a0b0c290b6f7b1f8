"""The numbers of a trial, while it trains and afterwards: from `history.csv`, the run's record and its results."""

import contextlib
import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.run import loop_directory, read, results_file
from everstep.sweeps.function import RESULT
from everstep.tracking import SIDE_FIGURES, of_validation, read_history, spellings

USUAL = ("validation_loss", "val_loss", "test loss", "loss", "training_loss")
"""What is recorded of a trial where no metric is named."""


@dataclasses.dataclass(frozen=True)
class MetricPoint:
    """A metric at a step."""

    step: int
    value: float


class TrialMetrics:
    """The numbers in a trial's directory; `read` reads them again if they have changed.

    Args:
      run_dir: The run directory.
    """

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._seen: tuple[int, int] | None = None
        self._rows: list[tuple[int, dict[str, str]]] = []
        self._columns: list[str] = []

    def read(self) -> bool:
        """Reads `history.csv`; returns whether it has changed."""
        path = loop_directory(self._run_dir) / "history.csv"
        try:
            status = path.stat()
        except OSError:
            return False
        seen = (status.st_mtime_ns, status.st_size)
        if seen == self._seen:
            return False
        self._seen = seen
        self._columns, self._rows = read_history(path)
        return True

    @property
    def is_evaluated(self) -> bool:
        """Whether the table has an evaluation, and a later row: then no column of that evaluation is missing."""
        rows = [number for number, (_, row) in enumerate(self._rows) if any(map(of_validation, row))]
        return bool(rows) and rows[0] + 1 < len(self._rows)

    @property
    def names(self) -> list[str]:
        """The metrics that the trial has logged so far."""
        return [name for name in [*self._columns, *self._final()] if name not in SIDE_FIGURES]

    @property
    def usual(self) -> str:
        """The metric that counts where none is named: the first of `USUAL` that the trial has logged; empty if none."""
        return next((name for name in USUAL if name in self.names), "")

    @property
    def step(self) -> int:
        """The last step in the table, or of the record."""
        with contextlib.suppress(UsageError, KeyError, TypeError, ValueError):
            return int(read(loop_directory(self._run_dir))["step"])
        return self._rows[-1][0] if self._rows else 0

    @property
    def train_steps(self) -> int | None:
        """How many steps the trial was going to train."""
        with contextlib.suppress(UsageError, KeyError, TypeError):
            return read(loop_directory(self._run_dir))["train_steps"]
        return None

    def points(self, metric: str) -> list[MetricPoint]:
        """Returns the values of a metric by step; what is computed once, at the end, has the last step."""
        final = self._final()
        for name in spellings(metric) if metric else USUAL:
            found = [MetricPoint(step, _number(row[name])) for step, row in self._rows if name in row]
            if found:
                return found
            if name in final:
                return [MetricPoint(self.step, final[name])]
        return []

    def _final(self) -> dict[str, float]:
        """Returns numbers that a trial has once, at its end: a function's, a flow's test metrics, an evaluation's."""
        found: dict[str, float] = {}
        with contextlib.suppress(UsageError, KeyError, TypeError, ValueError, AttributeError):
            found |= {name: float(value) for name, value in read(self._run_dir)["metrics"].get("test", {}).items()}
        with contextlib.suppress(UsageError, KeyError, TypeError, ValueError, AttributeError):
            returned = storage.read_json(self._run_dir / RESULT)["metrics"]
            found |= {name: float(value) for name, value in returned.items()}
        if (path := results_file(self._run_dir)) is not None:
            with contextlib.suppress(UsageError, TypeError, ValueError, AttributeError):
                found |= dict(_flat(storage.read_json(path)))
        return found


def _flat(results: dict[str, dict[str, dict[str, float]]]) -> Iterator[tuple[str, float]]:
    """Yields the means of an evaluation by split and name: `test accuracy`."""
    for split, kinds in results.items():
        for metrics in kinds.values() if isinstance(kinds, dict) else ():
            for name, value in metrics.items() if isinstance(metrics, dict) else ():
                if isinstance(value, int | float):
                    yield f"{split} {name}", float(value)


def best(points: Sequence[MetricPoint], mode: str) -> MetricPoint | None:
    """Returns the best of points, the earliest of equal ones; None if none has a finite value."""
    finite = [point for point in points if math.isfinite(point.value)]
    sign = 1.0 if mode == "min" else -1.0
    return min(finite, key=lambda point: (sign * point.value, point.step), default=None)


def last(points: Iterable[MetricPoint]) -> MetricPoint | None:
    """Returns the last of points; None if there is none, or it has no finite value."""
    found = list(points)
    return found[-1] if found and math.isfinite(found[-1].value) else None


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return math.nan
