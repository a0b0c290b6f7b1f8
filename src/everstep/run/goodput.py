"""Goodput: of all that a run has computed, how much was kept; and where the time went that was lost.

Steps are lost when a process dies before it saves them; time is lost computing them again, starting again, and
waiting to be started.
"""

import dataclasses
import datetime
from collections.abc import Mapping, Sequence
from typing import Any


@dataclasses.dataclass(frozen=True)
class Goodput:
    """What a run has to show for its work.

    Attributes:
      attempts: How often it was started.
      steps_kept: Steps that count.
      steps_computed: Steps that were computed, those that were lost included.
      seconds: From the first start to the last end.
      recomputing: Seconds of it spent on steps that were lost.
      starting: Seconds from each later start to its first step.
      down: Seconds between an attempt's end and the next start.
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

    def __str__(self) -> str:
        head = f"{self.ratio:.1%}: {self.steps_kept} steps kept of {self.steps_computed} computed"
        if not self.reasons:
            return f"{head} in {self.attempts} attempt{'s' if self.attempts > 1 else ''}"
        lost = self.recomputing + self.starting + self.down
        where = f"{self.recomputing:.0f} recomputing, {self.starting:.0f} starting, {self.down:.0f} down"
        reasons = ", ".join(f"{reason} ×{count}" for reason, count in self.reasons.items())
        return f"{head} in {self.attempts} attempts; {lost:.0f} of {self.seconds:.0f} s lost ({where}): {reasons}"


def goodput(record: Mapping[str, Any]) -> Goodput:
    """Returns the goodput of a run from the record of its attempts."""
    attempts: Sequence[Mapping[str, Any]] = record["attempts"]
    # After one that was done nothing was lost: somebody wanted more.
    pairs = [(one, later) for one, later in zip(attempts, attempts[1:], strict=False) if one["reason"] != "done"]
    computed = sum(_steps(attempt) for attempt in attempts)
    ends = [seconds(attempt["ended"]) for attempt in attempts]
    begins = [seconds(attempt["started"]) for attempt in attempts]
    reasons: dict[str, int] = {}
    for attempt, _ in pairs:
        reason = attempt["reason"] or "killed"
        reasons[reason] = reasons.get(reason, 0) + 1
    return Goodput(
        attempts=len(attempts),
        steps_kept=int(record["step"]),
        steps_computed=computed,
        seconds=_between(begins[0], ends[-1] or begins[-1]) if attempts else 0.0,
        recomputing=sum(_recomputing(attempt, later["from_step"]) for attempt, later in pairs),
        starting=sum(_starting(later) for _, later in pairs),
        down=sum(_between(seconds(one["ended"]), seconds(later["started"])) for one, later in pairs),
        reasons=reasons,
    )


def _steps(attempt: Mapping[str, Any]) -> int:
    return max(0, attempt["to_step"] - attempt["from_step"]) + attempt.get("steps_again", 0)


def _recomputing(attempt: Mapping[str, Any], resumed_from: int) -> float:
    lost, computed = max(0, attempt["to_step"] - resumed_from), _steps(attempt)
    begin, end = seconds(attempt.get("first_step")), seconds(attempt["ended"])
    return lost / computed * _between(begin, end) if lost and computed else 0.0


def _starting(attempt: Mapping[str, Any]) -> float:
    return _between(seconds(attempt["started"]), seconds(attempt.get("first_step")))


def _between(begin: float | None, end: float | None) -> float:
    """Returns how long it took; nothing where either time is not known."""
    return 0.0 if begin is None or end is None else max(0.0, end - begin)


def seconds(time: Any) -> float | None:
    """Returns a time of a record in seconds since 1970; None for one that is missing, or cannot be read."""
    try:
        return datetime.datetime.fromisoformat(time).timestamp()
    except (TypeError, ValueError, OverflowError):  # somebody else's, or damaged
        return None
