"""Whether two runs computed the same: the weights, and every number that was logged."""

import dataclasses

from everstep.run.reproduce.evidence import Evidence, Numbers


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was compared, and where it parts.

    Attributes:
      difference: The first number, or the weights, that differ, in words; empty if nothing does.
      step: The step of that difference.
      numbers: How many logged numbers were compared.
      weights: The step whose weights were compared; None if those of no step could be.
    """

    difference: str
    step: int | None
    numbers: int
    weights: int | None

    @property
    def proven(self) -> str:
        """What agrees, in words; only of use where nothing differs."""
        parts = [f"the weights after step {self.weights}"] if self.weights is not None else []
        parts += [f"{self.numbers} logged numbers"] if self.numbers else []
        return " and ".join(parts)


def compare(original: Evidence, again: Evidence, upto: int | None = None) -> Outcome:
    """Compares two runs, from the first step on.

    Args:
      original: The run.
      again: What is to be the same.
      upto: The last step that both have done; by default that of the original.
    """
    last = original.record["step"] if upto is None else upto
    whole = upto is None
    step, found = _first_number(original.numbers, again.numbers, last, whole)
    compared, at, weights = _weights(original, again, last)
    if weights and (step is None or at < step):
        step, found = at, weights
    if whole and not found and again.record["step"] != last:
        step = min(last, again.record["step"])
        found = f"step {step}: it ended after step {last}, now it ends after step {again.record['step']}"
    return Outcome(found, step, _shared(original.numbers, again.numbers, last, whole), compared)


def _first_number(before: Numbers, now: Numbers, last: int, whole: bool) -> tuple[int | None, str]:
    for step in sorted(step for step in before if step <= last):
        if step not in now:
            if whole:
                return step, f"step {step}: it was logged, and is not any more"
            continue
        for name, value in before[step].items():
            other = now[step].get(name)
            if other != value and (other is not None or whole):
                said = "not logged" if other is None else other
                return step, f"step {step}: {name} was {value}, now it is {said}"
    return None, ""


def _weights(original: Evidence, again: Evidence, last: int) -> tuple[int | None, int, str]:
    """Returns the last step whose weights both have, the first whose weights differ, and how; empty if none do."""
    compared: int | None = None
    at, found = last + 1, ""
    for step in reversed([step for step in original.steps() if step <= last]):
        before, now = original.weights(step), again.weights(step)
        if not before or not now:
            continue
        compared = step if compared is None else compared
        if before == now:  # what is the same after a step was the same before it
            break
        at, found = step, f"step {step}: the weights were {before[:12]}…, now {now[:12]}…"
    return compared, at, found


def _shared(before: Numbers, now: Numbers, last: int, whole: bool) -> int:
    both = [step for step in before if step <= last and (whole or step in now)]
    return sum(len(before[step] if whole else before[step].keys() & now[step].keys()) for step in both)
