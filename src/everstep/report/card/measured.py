"""How good the model is: what its evaluations found, mean and distribution of each metric."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.report.numbers import finite

SPLITS = ("validation", "test")


@dataclasses.dataclass(frozen=True)
class Metric:
    """One metric over the samples of one set of data.

    Attributes:
      name: Its name.
      description: One sentence, or "".
      better: "higher", "lower", or None where that is not known.
      mean: None where no sample has a number.
      count: How many samples have one.
      edges: Of the bins of its histogram.
      counts: How many samples are in each bin.
    """

    name: str
    description: str
    better: str | None
    mean: float | None
    count: int
    edges: list[float]
    counts: list[int]


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was found on one set of data.

    Attributes:
      split: Which data.
      rows: How many samples; None where they were not looked at one by one.
      metrics: Of the evaluator's functions.
      overall: What the model's own metrics say, by name.
    """

    split: str
    rows: int | None
    metrics: list[Metric]
    overall: dict[str, float | None]


def measured(reports: Path) -> list[Measured]:
    """Returns what the files of an evaluation say.

    Raises:
      UsageError: One is damaged.
    """
    means = _read(reports / "metrics.json")
    pages = {split: _read(reports / f"{split}.json") for split in SPLITS}
    found = [_of(split, pages[split], means.get(split, {})) for split in SPLITS]
    return [one for one in found if one.metrics or one.overall]


def _of(split: str, page: Mapping[str, Any], means: Mapping[str, Any]) -> Measured:
    overall = page.get("overall") or means.get("model.evaluate", {})
    return Measured(
        split=split,
        rows=page.get("rows"),
        metrics=[_metric(metric) for metric in page.get("metrics", ())],
        overall={str(name): finite(value) for name, value in overall.items()},
    )


def _metric(metric: Mapping[str, Any]) -> Metric:
    same = ("name", "description", "better", "mean", "count")
    return Metric(**{name: metric[name] for name in same}, **metric["histogram"])


def _read(path: Path) -> dict[str, Any]:
    found = storage.read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}
