"""The order of runs in a list: by a metric, or by what else is known of each."""

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from everstep.errors import UsageError, nearest
from everstep.submit.overview import Overview

_PLAIN: dict[str, Callable[[Overview], Any]] = {
    "step": lambda run: run.step,
    "age": lambda run: run.age,
    "experiment": lambda run: (run.record or {}).get("experiment"),
}
_KINDS = ("validation", "train")  # where a name is looked for, in this order


@dataclasses.dataclass(frozen=True)
class Order:
    """By what runs are sorted.

    Attributes:
      name: A metric of the last logs, `step`, `age` or `experiment`; empty to leave the order as it is.
      descending: Whether the highest comes first.
    """

    name: str = ""
    descending: bool = False

    @classmethod
    def of(cls, sort: str | None, descending: bool) -> "Order":
        """Returns what was asked for on the command line.

        Raises:
          UsageError: It contradicts itself, or is empty.
        """
        if sort is None:
            if descending:
                raise UsageError("--descending: there is nothing to sort by: add --sort NAME")
            return cls()
        name = sort.removeprefix("-")
        if not name:
            raise UsageError(f"--sort: received {sort!r}, expected a metric, step, age or experiment")
        if descending and name != sort:
            raise UsageError(f"--descending: --sort {sort} says it already: keep one of them")
        return cls(name, descending or name != sort)

    @property
    def is_metric(self) -> bool:
        """Whether it is by a number that the table does not show anyway."""
        return bool(self.name) and self.name not in _PLAIN

    def apply(self, runs: Sequence[Overview]) -> list[Overview]:
        """Returns the runs in order; those that do not have what they are sorted by come last, either way.

        Raises:
          UsageError: No run has it; names what there is.
        """
        if not self.name or not runs:
            return list(runs)
        known = set(_names(runs))
        if self.is_metric and not any(_spelled(self.name, one) for one in known):
            raise UsageError(f"--sort: no run has a metric {self.name!r}; {nearest(self.name, {*known, *_PLAIN})}")
        rated = [(self._key(run), run) for run in runs]
        first = [(key, run) for key, run in rated if key is not None]
        last = [run for key, run in rated if key is None]
        return [run for _, run in sorted(first, key=lambda pair: pair[0], reverse=self.descending)] + last

    def shown(self, run: Overview) -> Any:
        """Returns the metric of a run as its record has it; a dash for none."""
        metrics = (run.record or {}).get("metrics", {})
        for kind in _KINDS:
            for name in (self.name, self.name.removeprefix(f"{kind}_")):
                if name in metrics.get(kind, {}):
                    return metrics[kind][name]
        return "-"

    def _key(self, run: Overview) -> Any:
        if not self.is_metric:
            return _PLAIN[self.name](run)
        value = self.shown(run)
        is_number = isinstance(value, int | float) and math.isfinite(value)  # a record spells NaN as text
        return value if is_number else None


def _names(runs: Iterable[Overview]) -> Iterable[str]:
    for run in runs:
        for kind, logs in (run.record or {}).get("metrics", {}).items():
            yield from logs if kind in _KINDS else ()


def _spelled(asked: str, name: str) -> bool:
    return asked in (name, *(f"{kind}_{name}" for kind in _KINDS))
