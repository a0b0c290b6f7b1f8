"""The numbers at the top of the page: what the evaluations found, or, without any, what the logs said last."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from everstep.report.numbers import finite
from everstep.tracking.metric_names import SIDE_FIGURES, direction


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number.

    Attributes:
      name: Of the metric.
      split: On which data.
      value: The number, None where it is not finite.
      better: "higher", "lower", or None where that is not known.
      source: Where it comes from.
    """

    name: str
    split: str
    value: float | None
    better: str | None
    source: str


def headline(record: Mapping[str, Any] | None, pages: Sequence[Mapping[str, Any]]) -> list[Figure]:
    """Returns the figures, the most telling first."""
    found = [figure for page in pages for figure in _of_page(page)]
    metrics = (record or {}).get("metrics", {})
    names = {name for name, logs in metrics.items() if logs} - {page["split"] for page in pages}
    kinds = [kind for kind in ("validation", "train") if kind in names and not found]
    return found + [figure for kind in kinds for figure in _of_logs(kind, metrics[kind])]


def _of_page(page: Mapping[str, Any]) -> list[Figure]:
    known = {metric["name"]: metric["better"] for metric in page["metrics"]}
    overall = [
        Figure(name, page["split"], finite(value), known.get(name) or direction(name), "the model's own metric")
        for name, value in page["overall"].items()
    ]
    means = [
        Figure(m["name"], page["split"], m["mean"], m["better"], f"mean over {m['count']:,} samples")
        for m in page["metrics"]
        if m["name"] not in page["overall"]
    ]
    return overall + means


def _of_logs(kind: str, logs: Mapping[str, Any]) -> list[Figure]:
    return [
        Figure(name, kind, finite(value), direction(name), "the last logs")
        for name, value in logs.items()
        if name not in SIDE_FIGURES
    ]
