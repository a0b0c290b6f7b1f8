"""What is known of a run besides its numbers: how it went, on what, at which cost."""

import datetime
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.report.numbers import finite, shown
from everstep.run.goodput import goodput

STEP = "best_ckpt_global_step"
"""Under which name `export.json` has the step."""

Fact = dict[str, str]
"""`name` and `value`, and `detail` where there is more to say."""


def facts(record: Mapping[str, Any] | None) -> list[Fact]:
    """Returns the facts in the order in which they are shown; what is not known is left out."""
    if record is None:
        return []
    found = [*_course(record), *_place(record), *_cost(record["cost"])]
    return [each for each in found if each["value"]]


def read_export(directory: Path) -> dict[str, Any]:
    """Returns what `exported/export.json` says; nothing where there is none.

    Raises:
      UsageError: It is damaged.
    """
    path = directory / "exported" / "export.json"
    found = storage.read_json(path) if path.is_file() else {}
    return found if isinstance(found, dict) else {}


def read_notes(directory: Path) -> list[str]:
    """Returns what of an evaluation is not as it was in training, a line each.

    Raises:
      UsageError: `reports/metrics.json` is damaged.
    """
    path = directory / "reports" / "metrics.json"
    found = storage.read_json(path) if path.is_file() else {}
    notes = found.get("notes") if isinstance(found, dict) else None
    return [str(note) for note in notes] if isinstance(notes, list) else []


def origin(record: Mapping[str, Any] | None, export: Mapping[str, Any]) -> list[Fact]:
    """Returns what stands below the title: when, from which code, and which epoch was exported and why.

    Args:
      record: `run.json`.
      export: `exported/export.json`; empty where nothing was exported, or nothing is said of it.
    """
    attempts, code = (record or {}).get("attempts") or [{}], (record or {}).get("code") or {}
    found = [
        fact("date", str(attempts[0].get("started") or "")[:10]),
        fact("code", code_name(export.get("code") or code), code.get("commit") or code.get("sources")),
        fact("exported", _exported(export), chosen_by(export)),
    ]
    return [each for each in found if each["value"]]


def code_name(code: Mapping[str, Any]) -> str:
    """Returns which code it is, short: a commit, or a digest of the sources."""
    if code.get("commit"):
        return f"{code['commit'][:12]}{' with changes' if code.get('dirty') else ''}"
    return f"sources {code['sources'][:12]}" if code.get("sources") else ""


def chosen_by(export: Mapping[str, Any]) -> str:
    """Returns by what the exported epoch was chosen: `the lowest val_loss: 0.1234`; nothing where it was not."""
    metric, mode = export.get("metric"), {"min": "lowest", "max": "highest"}.get(export.get("mode", ""), "best")
    value = finite(export.get(metric)) if metric else None
    if not metric or "estimator" in export:
        return ""
    return f"the {mode} {metric}{'' if value is None else f': {shown(value)}'}"


def _exported(export: Mapping[str, Any]) -> str:
    if export.get("epoch") is None:
        return ""
    by = chosen_by(export)
    return f"epoch {int(export['epoch']) + 1}{f', chosen by {by}' if by else ''}"


def marks(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns where attempts after the first began: `step`, and `text` that says why."""
    attempts = (record or {}).get("attempts", [])
    return [
        {"step": later["from_step"], "text": f"attempt {number}, after: {before['reason'] or 'killed'}"}
        for number, (before, later) in enumerate(zip(attempts, attempts[1:], strict=False), start=2)
    ]


def exported(export: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns which step was exported, for the curves: `step`, and `text` that says why; None where nobody knows."""
    step = finite(export.get(STEP))
    by = chosen_by(export)
    return None if step is None else {"step": int(step), "text": f"exported{f', chosen by {by}' if by else ''}"}


def _course(record: Mapping[str, Any]) -> list[Fact]:
    attempts = record["attempts"]
    kept = goodput(record) if attempts else None
    took = _duration(kept.seconds) if kept and kept.seconds else ""
    return [
        fact("status", record["status"], attempts[-1]["reason"] if attempts else ""),
        fact("steps", f"{record['step']:,}", f"epoch {record['epoch']}"),
        fact("attempts", str(len(attempts) or "")),
        fact("goodput", f"{kept.ratio:.1%}" if kept else "", str(kept or "")),
        fact("time", took, attempts[0]["started"][:16] if attempts else ""),
    ]


def _place(record: Mapping[str, Any]) -> list[Fact]:
    return [fact("experiment", record["experiment"]), fact("backend", record["backend"])]


def _cost(cost: Mapping[str, Any]) -> list[Fact]:
    speed, share = finite(cost.get("samples_per_second")), finite(cost.get("utilisation"))
    return [
        fact("parameters", short(cost.get("parameters")), f"{cost.get('trainable_parameters')} of them trained"),
        fact("FLOPs a step", short(cost.get("flops_per_train_step")), f"batches of {cost.get('batch_size')}"),
        fact("samples a second", short(speed)),
        fact("device", f"{cost.get('devices', 1)} × {cost['device']}" if cost.get("device") else ""),
        fact("utilisation", f"{share:.1%}" if share else ""),
    ]


def fact(name: str, value: Any, detail: Any = "") -> Fact:
    """Returns one fact; what is not known has an empty value."""
    return {"name": name, "value": str(value or ""), "detail": str(detail or "")}


def short(value: Any) -> str:
    """Returns a number with three digits and a prefix: 1.32 M."""
    number = finite(value)
    if number is None:
        return ""
    for power, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= power:
            return f"{number / power:.3g} {prefix}"
    return f"{number:.3g}"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    return str(datetime.timedelta(seconds=round(seconds)))
