"""Which checkpoints are kept: a pure rule over steps, times and metrics.

`orbax.py` applies it after each save (`_prune`).
"""

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal

from everstep.errors import UsageError


@dataclasses.dataclass(frozen=True)
class Entry:
    """What the rule knows of a checkpoint.

    Attributes:
      step: The training step that was saved.
      saved: When it was saved, in seconds.
      metrics: The logs of the step's evaluation.
      size: The bytes of its files.
    """

    step: int
    saved: float = 0.0
    metrics: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    size: int = 0


@dataclasses.dataclass(frozen=True)
class Retention:
    """Keeps the newest checkpoints, some of the older ones at regular distances, a ladder of them, and the best.

    Attributes:
      newest: How many of the newest are kept; at least 2, so that there is one to fall back on.
      every_steps: Keep also one per this many steps; None for no such checkpoints.
      every_seconds: Keep also one per this many seconds; None for no such checkpoints.
      ladder_bytes: Keep also as many as fit into so many bytes, spread over the run: as it becomes longer every one,
        then about every second, then every fourth. None for no such checkpoints.
      best: How many of the best are kept.
      metric: The evaluation metric that ranks them.
      mode: Whether a higher or a lower value is better.
    """

    newest: int = 5
    every_steps: int | None = None
    every_seconds: float | None = None
    ladder_bytes: int | None = None
    best: int = 0
    metric: str = ""
    mode: Literal["higher", "lower"] = "higher"

    def __post_init__(self) -> None:
        if self.newest < 2:
            raise UsageError(
                "must be at least 2, so that there is one to fall back on when the newest is damaged",
                key="max_to_keep",
                received=self.newest,
            )
        if self.best and not self.metric:
            raise UsageError("needs the name of a metric", key="keep_best", remedy="set best_checkpoint_eval_metric")

    def kept(self, entries: Iterable[Entry]) -> set[int]:
        """Returns the steps that are kept; applied again to those, the rule removes nothing."""
        ordered = sorted(entries, key=lambda entry: entry.step)
        kept = {entry.step for entry in ordered[-self.newest :]}
        if self.every_steps:
            kept |= _spaced(ordered, lambda entry: entry.step, self.every_steps)
        if self.every_seconds:
            kept |= _spaced(ordered, lambda entry: entry.saved, self.every_seconds)
        kept |= self.best_of(ordered)
        return kept | _ladder(ordered, kept, self.ladder_bytes) if self.ladder_bytes else kept

    def best_of(self, ordered: Iterable[Entry]) -> set[int]:
        """Returns the steps of the best checkpoints."""
        rated = [(self._rating(entry), entry.step) for entry in ordered]
        # Of equal ones the older is kept; one without a finite value is never among the best.
        ranked = sorted((rating, step) for rating, step in rated if rating is not None)
        return {step for _, step in ranked[: self.best]}

    def _rating(self, entry: Entry) -> float | None:
        value = entry.metrics.get(self.metric)
        if not isinstance(value, int | float) or not math.isfinite(value):
            return None
        return -value if self.mode == "higher" else value


def _spaced(ordered: Sequence[Entry], position: Any, distance: float) -> set[int]:
    kept: list[Entry] = []
    for entry in ordered:
        if not kept or position(entry) - position(kept[-1]) >= distance:
            kept.append(entry)
    return {entry.step for entry in kept}


def _ladder(ordered: Sequence[Entry], kept: Set[int], most_bytes: int) -> set[int]:
    """Returns the steps that are kept beside others in so many bytes: first goes what is closest to its neighbors."""
    steps = [entry.step for entry in ordered]
    sizes = {entry.step: entry.size for entry in ordered if entry.step not in kept}
    while sum(sizes.values()) > most_bytes:
        gaps = {step: after - before for before, step, after in zip([0, *steps], steps, steps[1:], strict=False)}
        closest = min(sizes, key=lambda step: (gaps[step], step))
        steps.remove(closest)
        del sizes[closest]
    return set(sizes)
