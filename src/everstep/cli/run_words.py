"""What is known of a run in a few characters, for tables."""

from collections.abc import Mapping
from typing import Any

from everstep.submit.overview import Overview
from everstep.tracking.metric_names import SIDE_FIGURES

_NUM_METRICS = 3
_SPANS = ((172800, 86400, "d"), (7200, 3600, "h"), (120, 60, "min"), (0, 1, "s"))  # from when on, which unit


def progress(run: Overview) -> str:
    """Returns `1200/4000 30 %`; where nobody knows how many there are in all, the steps done."""
    if run.record is None:
        return "-"
    return f"{run.step}/{run.train_steps} {100 * run.step // run.train_steps} %" if run.train_steps else str(run.step)


def span(seconds: float | None) -> str:
    """Returns a time in one number: 40 s, 12 min, 3 h, 2 d."""
    if seconds is None:
        return "-"
    unit, name = next((unit, name) for from_, unit, name in _SPANS if seconds >= from_)
    return f"{seconds / unit:.0f} {name}"


def word(value: Any) -> str:
    """Returns a value as text; a dash for none."""
    return "-" if value is None else str(value)


def main_metrics(metrics: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Any]]:
    """Returns the first few figures of the last evaluation; where there was none, of training."""
    logs = metrics.get("validation") or metrics.get("train") or {}
    return [(name, value) for name, value in logs.items() if name not in SIDE_FIGURES][:_NUM_METRICS]
