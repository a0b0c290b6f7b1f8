"""The last lines of a run: its best value and where it was, the exported model, the report, how to load it."""

import json
from collections.abc import Sequence
from pathlib import Path

from everstep import storage
from everstep.checkpoint.remote import is_url, join
from everstep.run.record import read
from everstep.tracking import direction, read_history, value_text

Point = tuple[str, float]
"""Where a value was, such as `epoch 3`, and the value."""


def closing_rows(run: str, best: str, exported: Sequence[str], report: str = "") -> list[tuple[str, str]]:
    """Returns the lines, each a label and a text; what there is not is left out.

    Args:
      run: What the user calls the run directory: a path or a URL.
      best: The text of `best_value`.
      exported: The exported files, by their paths in the run directory.
      report: The path of the report in the run directory, and what to say about it.
    """
    rows = [("best", best), *(("exported", _below(run, path)) for path in exported)]
    rows += [("report", report and _below(run, report))]
    rows += [("load it", f"everstep.load({json.dumps(run, ensure_ascii=False)})")]
    return [(label, text) for label, text in rows if text]


def exported_files(directory: Path) -> list[str]:
    """Returns the exported files of a run, by their paths in its directory."""
    folder = directory / "export"
    names = sorted(path.name for path in folder.iterdir() if not storage.is_temporary(path)) if folder.is_dir() else []
    return [f"export/{name}" for name in names]


def best_value(name: str, points: Sequence[Point], better: str | None = None) -> str:
    """Returns the best value of a metric and where it was: `val_loss 0.2219 at epoch 7; 0.2432 at epoch 10, the last`.

    Args:
      name: The metric.
      points: Its values, in order.
      better: Which values are better, `higher` or `lower`; None for what the name implies, and lower if nothing.
    """
    sign = 1 if (better or direction(name)) == "higher" else -1
    finite = [point for point in points if abs(point[1]) < float("inf")]  # NaN is not below it either
    if not finite:
        return ""
    best, last = max(finite, key=lambda point: sign * point[1]), points[-1]
    text = f"{name} {value_text(best[1])} at {best[0]}"
    return text if best[1] == last[1] else f"{text}; {value_text(last[1])} at {last[0]}, the last"


def best_step(directory: Path, metric: str = "", better: str | None = None) -> str:
    """Returns the best value in a run's history; empty if it has none.

    Args:
      directory: The run directory.
      metric: The metric that the run chooses its best checkpoint by; empty for the loss of the validation data.
      better: Which of its values are better.
    """
    columns, rows = read_history(directory / "history.csv")
    names = [f"validation_{metric}", metric] if metric else ["validation_loss"]
    name = next((name for name in names if name in columns), "")
    length = read(directory).get("steps_per_epoch") if (directory / "run.json").is_file() else None
    points = [(_place(step, length), float(row[name])) for step, row in rows if name in row]
    return best_value(name, points, better)


def _place(step: int, epoch_steps: int | None) -> str:
    return f"epoch {step // epoch_steps}" if epoch_steps and step % epoch_steps == 0 else f"step {step}"


def _below(run: str, path: str) -> str:
    return join(run, path) if is_url(run) else str(Path(run, path))
