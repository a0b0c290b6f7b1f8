"""What is known of a run besides its numbers: how it went, on what, at which cost."""

import datetime
from collections.abc import Mapping
from typing import Any

from everstep.report.numbers import finite
from everstep.run.goodput import goodput

Fact = dict[str, str]
"""`name` and `value`, and `detail` where there is more to say."""


def facts(record: Mapping[str, Any] | None) -> list[Fact]:
    """Returns the facts in the order in which they are shown; what is not known is left out."""
    if record is None:
        return []
    found = [*_course(record), *_place(record), *_cost(record["cost"])]
    return [each for each in found if each["value"]]


def marks(record: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """Returns where attempts after the first began: `step`, and `text` that says why."""
    attempts = (record or {}).get("attempts", [])
    return [
        {"step": later["from_step"], "text": f"attempt {number}, after: {before['reason'] or 'killed'}"}
        for number, (before, later) in enumerate(zip(attempts, attempts[1:], strict=False), start=2)
    ]


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
    commit = record["code"].get("commit") or ""
    return [
        fact("experiment", record["experiment"]),
        fact("backend", record["backend"]),
        fact("code", commit[:10], f"{commit}{', with changes' if record['code'].get('dirty') else ''}"),
    ]


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
