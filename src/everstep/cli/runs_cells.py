"""What the commands of `everstep runs` show of a run in a cell: its progress, a duration, its main metrics."""

from collections.abc import Mapping
from typing import Any

from everstep.cli.output import number
from everstep.run import Overview
from everstep.tracking import SIDE_FIGURES


def progress(run: Overview) -> str:
    """Returns `1200/4000 30 %`; if the total is unknown, the steps done."""
    if run.record is None:
        return "-"
    return f"{run.step}/{run.train_steps} {100 * run.step // run.train_steps} %" if run.train_steps else str(run.step)


def duration(seconds: float | None) -> str:
    """Returns a time as one number: 40 s, 12 min, 3 h, 2 d."""
    if seconds is None:
        return "-"
    for least, unit, name in ((172800, 86400, "d"), (7200, 3600, "h"), (120, 60, "min")):
        if seconds >= least:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def text_or_dash(value: Any) -> str:
    """Returns a value as text; a dash for None."""
    return "-" if value is None else str(value)


def main_metrics(metrics: Mapping[str, Mapping[str, Any]], without: str = "") -> str:
    """Returns the first three metrics of the last evaluation, or else of training."""
    logs = metrics.get("validation") or metrics.get("train") or {}
    main = [(name, value) for name, value in logs.items() if name not in SIDE_FIGURES][:3]
    return " ".join(f"{name}={number(value)}" for name, value in main if name != without)
