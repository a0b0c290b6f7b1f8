"""What is said in the end: `identical`, or where two runs part, and why."""

import dataclasses
from typing import Any

from everstep.errors import UsageError
from everstep.run.reproduce.causes import DATA, RANDOMNESS, SEED, UNRECORDED, Cause, causes
from everstep.run.reproduce.evidence import Evidence
from everstep.run.reproduce.outcome import Outcome, compare


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The result of a reproduction.

    Attributes:
      outcome: Where the two part, if they do.
      cause: What explains that, or other data or another seed that made no difference; None where they are identical.
      others: What else differs between the two; of identical ones, all that does.
      notes: What else was found out.
      run: The run.
      again: What it was compared with.
    """

    outcome: Outcome
    cause: Cause | None
    others: tuple[Cause, ...]
    run: str
    again: str
    notes: tuple[str, ...] = ()

    @property
    def identical(self) -> bool:
        """Whether all that was compared agrees, and comes of the same data and seed."""
        return self.cause is None

    def lines(self) -> list[str]:
        """Returns it for people."""
        if self.cause is None:
            noted = [f"noted, {cause}" for cause in self.others]
            return [f"identical: {self.outcome.proven} agree", *noted, *self.notes]
        seen = f"first seen at {self.outcome.difference}" if self.outcome.difference else self._nevertheless
        also = [f"also different, {cause}" for cause in self.others]
        return [f"different, {self.cause}", seen, *self.notes, *also]

    def explained(self, note: str, cause: Cause | None = None) -> "Verdict":
        """Returns it with something that was found out, and perhaps another cause: the former one differs as well."""
        if cause is None:
            return dataclasses.replace(self, notes=(*self.notes, note))
        former = (self.cause,) if self.cause is not None and self.cause.kind not in (RANDOMNESS, UNRECORDED) else ()
        return dataclasses.replace(self, cause=cause, others=(*former, *self.others), notes=(*self.notes, note))

    @property
    def _nevertheless(self) -> str:
        return f"{self.outcome.proven} agree nevertheless"

    def as_dict(self) -> dict[str, Any]:
        """Returns it for programs."""
        return {
            "verdict": "identical" if self.identical else "different",
            "cause": dataclasses.asdict(self.cause) if self.cause else None,
            "first_difference": self.outcome.difference or None,
            "also_different": [dataclasses.asdict(cause) for cause in self.others],
            "notes": list(self.notes),
            "numbers_compared": self.outcome.numbers,
            "weights_compared_at": self.outcome.weights,
            "run": self.run,
            "again": self.again,
        }


def judge(original: Evidence, again: Evidence, upto: int | None = None) -> Verdict:
    """Compares two runs, and names what explains a difference.

    Args:
      original: The run.
      again: What is to be the same.
      upto: The last step that both have done; by default the last of the original.

    Raises:
      UsageError: There is nothing that both have.
    """
    outcome = compare(original, again, upto)
    if not outcome.proven and not outcome.difference:
        raise UsageError(
            f"{str(original.directory)!r} has nothing to compare: no number was logged and no state was kept "
            f"{'at all' if upto is None else f'up to step {upto}'}; {_hint(original)}"
        )
    found = causes(original.record, again.record, original.config, again.config, partial=upto is not None)
    names = str(original.directory), str(again.directory)
    if not outcome.difference and not any(cause.kind in (SEED, DATA) for cause in found):
        return Verdict(outcome, None, tuple(found), *names, notes=_not_compared(original))
    if not outcome.difference:  # by chance, or because too little was compared: it is another experiment all the same
        found.sort(key=lambda cause: cause.kind not in (SEED, DATA))
    unexplained = Cause(RANDOMNESS, "code, data, packages, hardware and seed are the same: something draws unseeded")
    first, *rest = found or [unexplained]
    return Verdict(outcome, first, tuple(rest), *names)


def _not_compared(original: Evidence) -> tuple[str, ...]:
    if original.numbers or not any(original.record["metrics"].values()):
        return ()
    return ("its numbers were not compared: history.csv is gone",)


def _hint(original: Evidence) -> str:
    known = sorted({*original.steps(), *original.numbers})
    return f"ask for a step from {known[0]} on" if known else "train it anew with checkpoints"
