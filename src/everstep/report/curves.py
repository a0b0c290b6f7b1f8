"""Learning curves from `history.csv`: each metric with its training and its validation series."""

import csv
import dataclasses
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.report.numbers import listed
from everstep.tracking.metric_names import SIDE_FIGURES, bare, of_validation

MOST_POINTS = 1_200
"""Points of a series that the page draws; of more, the extremes of each stretch are kept."""


@dataclasses.dataclass
class Series:
    """Numbers over steps; None where one is not finite.

    Attributes:
      kind: "train" or "validation".
      steps: Ascending.
      values: As many.
      total: How many there were before they were thinned out.
    """

    kind: str
    steps: list[int]
    values: list[float | None]
    total: int


@dataclasses.dataclass
class Curve:
    """One metric over all attempts.

    Attributes:
      name: The metric, without what tells training from validation.
      side: Whether it says how fast it went, not how good it is.
      series: At most one of each kind.
    """

    name: str
    side: bool
    series: list[Series]


def read_curves(path: Path, record: Mapping[str, Any] | None) -> list[Curve]:
    """Returns the curves in a history, those that say how good the model is first; [] if there is none."""
    found: dict[str, Curve] = {}
    for (name, kind), points in read_points(path, record).items():
        curve = found.setdefault(name, Curve(name, name in SIDE_FIGURES, []))
        curve.series.append(thinned(kind, points))
    return sorted(found.values(), key=lambda curve: curve.side)


def read_points(path: Path, record: Mapping[str, Any] | None) -> dict[tuple[str, str], list[tuple[int, float]]]:
    """Returns all points of a history, by the metric and its kind; {} if there is none."""
    columns = _columns(path.read_text("utf-8", errors="replace") if path.is_file() else "")
    validation = _only_validation(record)
    found: dict[tuple[str, str], list[tuple[int, float]]] = {}
    for column, points in columns.items():
        if points:
            found.setdefault(named(column, validation), points)
    return found


def steps_per_epoch(curves: Sequence[Curve], record: Mapping[str, Any] | None) -> int | None:
    """Returns how many steps an epoch has, where a run logs at the end of each; None where it counts steps."""
    steps = sorted({step for curve in curves for series in curve.series for step in series.steps})
    length = steps[0] if steps else 0
    if record is None or not length or not record["epoch"] or any(step % length for step in steps):
        return None
    return length if record["step"] // length == record["epoch"] else None


def named(column: str, validation: set[str]) -> tuple[str, str]:
    """Returns the metric and the kind of a column: `validation_loss` is the validation series of `loss`.

    Args:
      column: Its header.
      validation: Plain names that only validation uses.
    """
    if (name := bare(column)) != column:
        return name, "validation" if of_validation(column) else "train"
    return column, "validation" if column in validation else "train"


def thinned(kind: str, points: list[tuple[int, float]]) -> Series:
    """Returns a series that a page can draw: of every stretch of steps the lowest and the highest, and both ends."""
    steps, values = np.array([step for step, _ in points]), np.array([value for _, value in points])
    kept = np.arange(len(values))
    if len(values) > MOST_POINTS:
        parts = np.array_split(kept, MOST_POINTS // 2 - 1)
        known = np.nan_to_num(values, nan=0.0)
        extremes = [(part[known[part].argmin()], part[known[part].argmax()]) for part in parts]
        kept = np.unique([0, len(values) - 1, *np.ravel(extremes)])
    return Series(kind, steps[kept].tolist(), listed(values[kept]), len(values))


def _columns(text: str) -> dict[str, list[tuple[int, float]]]:
    """Returns the points of every column; a last line that a kill left unfinished does not count."""
    reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in (reader.fieldnames or ())[1:] if name != "epoch"}
    for row in reader:
        step = row.get("step") or ""
        if step.isdecimal() and None not in row:
            for name, points in found.items():
                if row[name]:
                    points.append((int(step), _number(row[name])))
    return found


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _only_validation(record: Mapping[str, Any] | None) -> set[str]:
    metrics = (record or {}).get("metrics", {})
    return set(metrics.get("validation", ())) - set(metrics.get("train", ()))
