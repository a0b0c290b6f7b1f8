"""Runs checks one after the other: all of them, whatever fails, except those that need what has failed."""

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from everstep.components.blame import blamed
from everstep.components.checks.outcome import Doubt, NotNeeded, Outcome, Status
from everstep.components.checks.subject import Subject
from everstep.errors import TrainingError, UsageError


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing to look at.

    Attributes:
      component: Whose it is.
      name: What it is called.
      function: Looks; returns what is fine, in words, and raises `UsageError`, `Doubt` or `NotNeeded` otherwise.
      needs: The names of checks without which it makes no sense.
    """

    component: str
    name: str
    function: Callable[[Subject], str]
    needs: tuple[str, ...] = ()


def run_checks(subject: Subject, checks: Sequence[Check]) -> Iterator[Outcome]:
    """Yields what each check found, as soon as it is known; several lines where it found several things."""
    lost: set[str] = set()
    for check in checks:
        found = list(_outcomes(check, subject, lost))
        if any(outcome.status == "FAIL" for outcome in found) or lost & set(check.needs):
            lost.add(check.name)
        yield from found


def _outcomes(check: Check, subject: Subject, lost: set[str]) -> Iterator[Outcome]:
    missing = [need for need in check.needs if need in lost]
    if missing:
        yield _line("skip", check, f"{check.name}: not looked at, as it needs: {', '.join(missing)}")
        return
    try:
        with blamed(f"{check.name}: looking at it", subject.source):
            found = check.function(subject)
    except (UsageError, TrainingError) as error:
        if isinstance(error.__cause__, Doubt | NotNeeded):
            yield from _not_an_error(check, error.__cause__)
            return
        for line in str(error).splitlines():
            yield _line("FAIL", check, subject.named(check.component, line))
    else:
        yield _line("ok", check, found)


def _not_an_error(check: Check, found: Exception) -> Iterator[Outcome]:
    status: Status = "warn" if isinstance(found, Doubt) else "skip"
    for line in str(found).splitlines():
        yield Outcome(status, check.component, check.name, line)


def _line(status: Status, check: Check, text: str) -> Outcome:
    return Outcome(status, check.component, check.name, " ".join(text.split()))
