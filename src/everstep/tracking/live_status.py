"""What the picture of a run shows."""

import dataclasses
from collections.abc import Mapping, Sequence

from everstep.tracking.live_metrics import Metric


@dataclasses.dataclass
class Status:
    """What is known of a run right now; None where nobody knows.

    Attributes:
      step: Steps done.
      total: Steps in all.
      epoch: Epochs done, with the part of the one under way.
      phase: What it does, where that is not training: `starting`, `evaluating`.
      rate: Steps a second.
      left: Seconds until it is done.
      gone: Seconds since this attempt began.
      rates: The last figures of speed that were logged, by name.
      metrics: The metrics.
      saves: Whether anything is saved at all.
      checkpoint: The newest step that is safe, and for how many seconds it has been.
      attempts: How often it was started.
      goodput: Of the steps that were computed, the share that was kept.
      system: The last figures of the machine, by name.
    """

    step: int = 0
    total: int | None = None
    epoch: float | None = None
    phase: str = ""
    rate: float | None = None
    left: float | None = None
    gone: float | None = None
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metrics: Sequence[Metric] = ()
    saves: bool = True
    checkpoint: tuple[int, float | None] | None = None
    attempts: int = 1
    goodput: float | None = None
    system: Mapping[str, float] = dataclasses.field(default_factory=dict)
