"""Compares two runs sample by sample: rows are joined by id, and the largest changes are shown."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from everstep.report.numbers import finite, listed
from everstep.report.run_data import RunData
from everstep.report.split_data import Split, class_numbers, floats, plain

SHOWN = 60
"""The number of samples shown of those that got worse, and of those that got better."""


@dataclasses.dataclass(frozen=True)
class Joined:
    """The rows that two tables have in common.

    Attributes:
      before: The table of the first run.
      after: The table of the other run.
      old: Row numbers in `before`.
      new: Row numbers in `after`, of the same samples.
    """

    before: pa.Table
    after: pa.Table
    old: np.ndarray
    new: np.ndarray


def compare(base: RunData, other: RunData, number: int) -> list[dict[str, Any]]:
    """Returns the changes from `base` to `other`, for each split that both were evaluated on.

    It adds a column with the change of each metric to the table of `other`.

    Args:
      base: The run to compare with.
      other: The run to compare.
      number: The position of `other` among the page's runs.
    """
    pairs = [(before, after) for after in other.splits if (before := base.split(after.name)) is not None]
    with np.errstate(over="ignore", invalid="ignore"):  # the difference of two floats may overflow
        return [
            {"run": number, "split": after.name, **_changes(before, after, before.table, after.table)}
            for before, after in pairs
            if before.table is not None and after.table is not None
        ]


def join(before: Sequence[str], after: Sequence[str]) -> tuple[np.ndarray, np.ndarray, int]:
    """Returns the row numbers of ids that are in both, and the number of ids left out because they repeat."""
    counts = Counter(before), Counter(after)
    twice = {name for names in counts for name, count in names.items() if count > 1}
    places = {name: row for row, name in enumerate(before) if name not in twice}
    pairs = [(places[name], row) for row, name in enumerate(after) if name in places]
    rows = np.array(pairs, np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1], len(twice)


def _changes(before: Split, after: Split, past: pa.Table, present: pa.Table) -> dict[str, Any]:
    old, new, repeated = join(past["id"].to_pylist(), present["id"].to_pylist())
    joined = Joined(past, present, old, new)
    classified = before.page["kind"] == after.page["kind"] == "classification"
    return {
        "joined": len(new),
        "only_before": past.num_rows - len(old),
        "only_after": present.num_rows - len(new),
        "repeated": repeated,
        "metrics": [_of_metric(name, joined, after) for name in after.metrics if name in before.metrics],
        **(_corrected(joined) if classified else {}),
    }


def _of_metric(name: str, joined: Joined, split: Split) -> dict[str, Any]:
    better = next(metric["better"] for metric in split.page["metrics"] if metric["name"] == name)
    old, new = floats(joined.before[name])[joined.old], floats(joined.after[name])[joined.new]
    changes = np.full(joined.after.num_rows, np.nan)
    changes[joined.new] = new - old
    split.changes[f"change of {name}"] = changes
    gain = np.nan_to_num(new - old if better == "higher" else old - new)
    best, worst = (np.argsort(sign * gain, kind="stable")[:SHOWN] for sign in (-1, 1))
    return {
        "name": name,
        "better": better,
        "before": _mean(old),
        "after": _mean(new),
        "counts": {"improved": int((gain > 0).sum()), "worsened": int((gain < 0).sum())},
        "improved": _samples(joined, best[gain[best] > 0], old, new),
        "worsened": _samples(joined, worst[gain[worst] < 0], old, new),
    }


def _samples(joined: Joined, places: np.ndarray, old: np.ndarray, new: np.ndarray) -> list[dict[str, Any]]:
    """Returns samples by their positions in the join, with the predictions and values of both runs."""
    past = joined.before.take(pa.array(joined.old[places]))
    present = joined.after.take(pa.array(joined.new[places]))
    columns = {
        "id": plain(present["id"]),
        "row": joined.new[places].tolist(),
        "label": _optional(present, "label"),
        "prediction_before": _optional(past, "prediction"),
        "prediction": _optional(present, "prediction"),
        "before": listed(old[places]),
        "after": listed(new[places]),
    }
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _corrected(joined: Joined) -> dict[str, int]:
    """Returns how many wrong predictions became right, and how many right ones wrong."""
    was, is_ = _right(joined.before)[joined.old], _right(joined.after)[joined.new]
    return {"corrected": int((~was & is_).sum()), "broken": int((was & ~is_).sum())}


def _right(table: pa.Table) -> np.ndarray:
    return class_numbers(table["label"]) == class_numbers(table["prediction"])


def _optional(table: pa.Table, name: str) -> list[Any]:
    return plain(table[name]) if name in table.column_names else [None] * table.num_rows


def _mean(values: np.ndarray) -> float | None:
    known = values[~np.isnan(values)]
    return finite(known.mean()) if known.size else None
