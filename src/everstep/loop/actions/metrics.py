"""Metrics by name, and their comparison.

`a|b` is the metric `b` inside `a`, for nested logs. A value that is not finite is never better than another, and of two
equal values the older one stays the best.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.loop.trainer import Trainer
from everstep.types import CLOCKS

TIMES = CLOCKS
"""Names in logs that are not metrics; no two runs agree on them."""


def value_of(logs: Mapping[str, Any], name: str, key: str) -> float:
    """Returns a metric.

    Args:
      logs: The logs of an evaluation.
      name: The metric's name, or `a|b`.
      key: The key that specifies the name, such as `trainer.best_checkpoint_eval_metric`.

    Raises:
      UsageError: The logs have no such metric; lists those they have.
    """
    value: Any = logs.get(name)  # a plain name may contain `|`
    if value is None:
        value = logs
        for part in name.split("|"):
            value = value.get(part) if isinstance(value, Mapping) else None
    try:
        return float(value)
    except (TypeError, ValueError):
        raise unknown(name, key, names(logs)) from None


def unknown(name: str, key: str, known: list[str]) -> UsageError:
    """Returns the error for a metric that evaluations do not have."""
    listed = ", ".join(sorted(known)) or "none"
    return UsageError("is not a metric of the evaluation", key=key, received=name, remedy=f"choose one of: {listed}")


def names(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of all metrics in the logs, `a|b` for nested ones."""
    return [name for name, _ in _leaves(logs)]


def scalars(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics as JSON values, nested as they are; those that are not finite as strings that `float` reads.

    Values that are not one number, such as images, are skipped.
    """
    given = {name: value for name, value in logs.items() if name not in TIMES}
    values = {name: scalars(value) if isinstance(value, Mapping) else _number(value) for name, value in given.items()}
    return {name: value for name, value in values.items() if value is not None}


def is_better(value: float, best: float | None, higher: bool, by: float = 0.0) -> bool:
    """Whether a value is better than the best so far by more than `by`; None if there is no best yet."""
    if not math.isfinite(value):
        return False
    return best is None or (value - best > by if higher else best - value > by)


def best_at(
    step: int | None, saved: float | None, found: float | None, found_at: int | None, higher: bool
) -> float | None:
    """Returns the best value of a run that resumes from a checkpoint.

    Args:
      step: The step of the checkpoint; None if it is unknown.
      saved: The best value in the checkpoint.
      found: The best value in a file, which may be newer.
      found_at: The step of that value; if it is later than the checkpoint, it will be repeated, so it is ignored.
      higher: Whether a higher value is better.
    """
    if step is None or found is None or found_at is None or found_at > step:
        return saved
    return found if is_better(found, saved, higher) else saved


def known_names(trainer: Any) -> list[str] | None:
    """Returns the names of the logs of a trainer's evaluations; None if they are unknown before an evaluation."""
    engine = getattr(trainer, "engine", None)
    usual = getattr(type(trainer), "evaluate", None) is Trainer.evaluate
    if engine is None or not usual or trainer.task.aggregates or "validation" not in engine.windows:
        return None
    return ["validation_loss" if name == trainer.task.loss else name for name in engine.read("validation")]


def require_known(trainer: Any, name: str, key: str) -> None:
    """Refuses, before the first step, a metric that no evaluation will have.

    Raises:
      UsageError: Evaluations have no such metric; lists those they have.
    """
    known = known_names(trainer)
    if known is not None and name not in known:
        raise unknown(name, key, known)


def _leaves(logs: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in logs.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{above}{name}|")
        elif name not in TIMES:
            yield f"{above}{name}", value


def _number(value: Any) -> int | float | str | None:
    if isinstance(value, int):  # such as the number of an epoch
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
