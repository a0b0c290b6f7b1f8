"""What the commands of `everstep runs` show of a run in a cell: its progress, a duration, its main metrics."""

from typing import Any

from everstep.cli.output import number
from everstep.run import Overview, stopped_early
from everstep.tracking import SIDE_FIGURES


def progress(run: Overview) -> str:
    """Returns `1200/4000 30 %`, or `3/25 epochs 12 %` of a run that counts epochs; where it was stopped early, that.

    If the total is unknown, it is the steps done.
    """
    if run.record is None:
        return "-"
    if text := stopped_early(run.record):
        return text
    if not run.train_steps:
        return str(run.step)
    epochs, length = run.record.get("epochs"), run.record.get("steps_per_epoch")
    done = f"{run.step // length}/{epochs} epochs" if epochs and length else f"{run.step}/{run.train_steps}"
    return f"{done} {100 * run.step // run.train_steps} %"


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


def main_metrics(run: Overview, without: str = "") -> str:
    """Returns the first three metrics of the last evaluation, or else of training.

    Of a run that ended with the weights of an earlier step, they are those of that step, with the last ones behind:
    `validation_loss=0.0544 (epoch 2, exported; last 0.2046)`.

    Args:
      run: The run.
      without: The name of a metric that has a column of its own.
    """
    shown, final, last = run.shown_metrics, run.final_weights, (run.record or {}).get("metrics", {})
    kind = next((kind for kind in ("validation", "train") if shown.get(kind)), "train")
    names = [name for name in shown.get(kind, {}) if name not in SIDE_FIGURES][:3]
    names = [name for name in names if name != without]
    text = " ".join(f"{name}={number(shown[kind][name])}" for name in names)
    if final is None or not names:
        return text
    last_values = " ".join(number(last[kind][name]) for name in names if name in last.get(kind, {}))
    return f"{text} ({final.mark}; last {last_values})"
