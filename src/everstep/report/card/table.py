"""The table of a card: a row for each metric, a column for each set of data."""

import dataclasses
from collections.abc import Iterator

from everstep.report.card.content import Card
from everstep.report.card.measured import Measured, Metric
from everstep.report.numbers import shown


@dataclasses.dataclass(frozen=True)
class Row:
    """One row.

    Attributes:
      name: The metric, or the heading of those that follow.
      note: What there is to say about it.
      cells: For each set of data the number, and how many samples it is the mean of ("" for the model's own).
      is_group: Whether it is a heading.
    """

    name: str
    note: str = ""
    cells: tuple[tuple[str, str], ...] = ()
    is_group: bool = False


def rows(card: Card) -> list[Row]:
    """Returns the rows: the evaluator's functions first, then what the model's own metrics say."""
    names = dict.fromkeys(metric.name for one in card.measured for metric in one.metrics)
    functions = [_of_functions(name, card.measured) for name in names]
    own = list(_own(card.measured))
    return functions + ([Row("by model.evaluate", is_group=True)] if functions and own else []) + own


def _of_functions(name: str, found: list[Measured]) -> Row:
    known = [next((metric for metric in one.metrics if metric.name == name), None) for one in found]
    first = next(metric for metric in known if metric)
    better = f"{first.better} is better" if first.better else ""
    note = "; ".join(filter(None, (" ".join(first.description.split()).rstrip("."), better)))
    return Row(name, note, tuple(_cell(metric) for metric in known))


def _cell(metric: Metric | None) -> tuple[str, str]:
    return (shown(metric.mean), f"{metric.count:,}") if metric else (shown(None), "")


def _own(found: list[Measured]) -> Iterator[Row]:
    for name in dict.fromkeys(name for one in found for name in one.overall):
        yield Row(name, cells=tuple((shown(one.overall.get(name)), "") for one in found))
