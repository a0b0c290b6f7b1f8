"""Metrics by name, and which of two values is the better one.

`a|b` is the metric `b` inside `a`, for evaluations whose logs are nested. A value that is not finite is never better
than another, and of two equal ones the older stays the best.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.loop.trainer import Trainer
from everstep.types import CLOCKS

TIMES = CLOCKS
"""What logs hold beside metrics; no two runs agree on them."""


def value_of(logs: Mapping[str, Any], name: str, key: str) -> float:
    """Returns a metric.

    Args:
      logs: The logs of an evaluation.
      name: The metric's name, or `a|b`.
      key: Where the name was said, such as `trainer.best_checkpoint_eval_metric`.

    Raises:
      UsageError: There is none of that name; lists those there are.
    """
    value: Any = logs.get(name)  # a name of its own may have the sign in it
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
    return UsageError(f"there is no metric {name!r}; those of the evaluation: {listed}", key=key)


def names(logs: Mapping[str, Any]) -> list[str]:
    """Returns the names of all metrics in the logs, `a|b` for those inside others."""
    return [name for name, _ in _leaves(logs)]


def scalars(logs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics in JSON's terms, nested as they are; those that are not finite as text that `float` reads.

    What is not one number, such as an image, is left out.
    """
    kept = {name: value for name, value in logs.items() if name not in TIMES}
    found = {name: scalars(value) if isinstance(value, Mapping) else _number(value) for name, value in kept.items()}
    return {name: value for name, value in found.items() if value is not None}


def is_better(value: float, best: float | None, higher: bool, by: float = 0.0) -> bool:
    """Whether a value is better than the best so far, by more than `by`; None is no best so far."""
    if not math.isfinite(value):
        return False
    return best is None or (value - best > by if higher else best - value > by)


def best_at(
    step: int | None, saved: float | None, found: float | None, found_at: int | None, higher: bool
) -> float | None:
    """Returns the best that a run which goes on from a checkpoint knows of.

    Args:
      step: The checkpoint's; None if nobody knows it.
      saved: The best as the checkpoint has it.
      found: The best as a file has it, which may be newer.
      found_at: The step of that; if it is a later one, an attempt that was killed got there, and the run will again.
      higher: Whether a higher value is better.
    """
    if step is None or found is None or found_at is None or found_at > step:
        return saved
    return found if is_better(found, saved, higher) else saved


def known_names(trainer: Any) -> list[str] | None:
    """Returns the names that the logs of a trainer's evaluations will have; None where only an evaluation can say."""
    engine = getattr(trainer, "engine", None)
    usual = getattr(type(trainer), "evaluate", None) is Trainer.evaluate
    if engine is None or not usual or trainer.task.aggregates or "validation" not in engine.windows:
        return None
    return ["validation_loss" if name == trainer.task.loss else name for name in engine.read("validation")]


def require_known(trainer: Any, name: str, key: str) -> None:
    """Refuses, before the first step, a metric that no evaluation will have.

    Raises:
      UsageError: It is none of them; lists those there are.
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
    if isinstance(value, int):  # the number of an epoch, say
        return value
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if math.isfinite(number):
        return number
    return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
