"""Goodput: of the training steps that a run has computed, the share that was kept.

A step is computed when the call that runs it is done, and kept when the run's current state contains it: that of the
process that trains, or, where the last attempt has failed or was interrupted, the newest checkpoint. Steps are lost
when a process ends without saving them, when training rolls back, or when a damaged checkpoint makes it resume from an
earlier one; then they are computed again. The ratio does not depend on time. The cost of restarts in seconds
(computing lost steps, starting up again, being down) is reported beside it.
"""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Goodput:
    """The goodput of a run, and what its restarts have cost.

    Attributes:
      attempts: The number of attempts.
      steps_kept: The steps that the run's state contains, without those that it began with.
      steps_computed: Steps kept and steps lost.
      seconds: The duration of all attempts and of the pauses between them, except pauses after an attempt that was
        done: it was not restarted.
      recomputing: Seconds of it in which the lost steps were computed.
      starting: Seconds from the start of each further attempt to its first step.
      down: Seconds between the end of an attempt and the start of the next.
      reasons: Why attempts before the last one ended, with how often.
    """

    attempts: int
    steps_kept: int
    steps_computed: int
    seconds: float
    recomputing: float
    starting: float
    down: float
    reasons: Mapping[str, int]

    @property
    def ratio(self) -> float:
        """Steps kept of those computed; 1 for a run that has lost nothing."""
        return self.steps_kept / self.steps_computed if self.steps_computed else 1.0

    @property
    def restarting(self) -> float:
        """Seconds that restarts have cost in all."""
        return self.recomputing + self.starting + self.down

    def __str__(self) -> str:
        head = f"{self.ratio:.1%}: {self.steps_kept} steps kept of {self.steps_computed} computed"
        head += f" in {self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        if not self.reasons:
            return head
        where = f"{self.recomputing:.0f} recomputing, {self.starting:.0f} starting, {self.down:.0f} down"
        reasons = ", ".join(f"{reason} ×{count}" for reason, count in self.reasons.items())
        return f"{head}; restarts took {self.restarting:.0f} of {self.seconds:.0f} s ({where}): {reasons}"


def goodput(record: Mapping[str, Any]) -> Goodput:
    """Returns the goodput of a run from its record: `step`, and `attempts` with their steps and times."""
    attempts = [_AttemptSteps.of(one) for one in record["attempts"]]
    for one, later in zip(attempts, attempts[1:], strict=False):
        # What the next attempt resumed from was computed before it, even if no heartbeat reached the disk.
        one.to_step = max(one.to_step, later.from_step)
    # An attempt that was done was not restarted: it was extended.
    restarts = [(one, later) for one, later in zip(attempts, attempts[1:], strict=False) if one.reason != "done"]
    reasons: dict[str, int] = {}
    for one, _ in restarts:
        reasons[one.reason] = reasons.get(one.reason, 0) + 1
    step, down = _kept_step(record), sum(_between(one.ended, later.started) for one, later in restarts)
    computed = sum(one.computed for one in attempts)
    kept = step - min((one.from_step for one in attempts), default=step)
    return Goodput(
        attempts=len(attempts),
        steps_kept=min(max(kept, 0), computed),
        steps_computed=computed,
        seconds=down + sum(one.seconds for one in attempts),
        recomputing=_recomputing(attempts, step),
        starting=sum(later.starting for _, later in restarts),
        down=down,
        reasons=reasons,
    )


def _kept_step(record: Mapping[str, Any]) -> int:
    """Returns the step of the run's current state."""
    step, last = int(record["step"]), record["attempts"][-1] if record["attempts"] else {}
    if last.get("ended") is None or last["reason"] == "done":
        return step
    return min(step, int(last.get("saved_step", step)))


def _recomputing(attempts: "Sequence[_AttemptSteps]", step: int) -> float:
    """Returns the seconds in which lost steps were computed.

    They are steps that an attempt rolled back, and steps beyond the earliest step that a later attempt resumed from.
    """
    total, resumed_from = 0.0, step
    for one in reversed(attempts):
        lost = one.rolled_back + max(0, one.to_step - max(one.from_step, resumed_from))
        total += one.training * min(1.0, lost / one.computed) if one.computed else 0.0
        resumed_from = min(resumed_from, one.from_step)
    return total


@dataclasses.dataclass
class _AttemptSteps:
    """An attempt as recorded, with its times in order; missing ones are None."""

    from_step: int
    to_step: int
    rolled_back: int
    started: float | None
    first_step: float | None
    ended: float | None
    reason: str

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "_AttemptSteps":
        started, first, ended = (seconds(record.get(name)) for name in ("started", "first_step", "ended"))
        if started is not None:
            first = None if first is None else max(started, first)
            ended = None if ended is None else max(started, ended)
        if first is not None:
            first = first if ended is None else min(first, ended)
            ended = first if ended is None else ended
        return cls(
            from_step=int(record["from_step"]),
            to_step=int(record["to_step"]),
            rolled_back=int(record.get("steps_again", 0)),
            started=started,
            first_step=first,
            ended=ended,
            reason=record["reason"] or "killed",
        )

    @property
    def computed(self) -> int:
        return max(0, self.to_step - self.from_step + self.rolled_back)

    @property
    def seconds(self) -> float:
        return _between(self.started, self.ended)

    @property
    def starting(self) -> float:
        return _between(self.started, self.first_step)

    @property
    def training(self) -> float:
        """Seconds from the first step to the end."""
        return _between(self.first_step, self.ended)


def _between(begin: float | None, end: float | None) -> float:
    """Returns the seconds between two times; 0 if one is unknown."""
    return 0.0 if begin is None or end is None else max(0.0, end - begin)


def seconds(time: Any) -> float | None:
    """Returns a time of a record in seconds since 1970; None if it is missing or invalid."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, OverflowError):  # written by another program, or damaged
        return None
