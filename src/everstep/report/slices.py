"""Slices: the mean of each metric for every value of a column, or for every bin of it, over all rows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everstep.report.numbers import group_means
from everstep.report.rows import floats, is_number, spelled

MOST_VALUES = 40
"""Of more values the most frequent; the others are one group."""

FEW_NUMBERS = 12
"""A column of numbers with at most so many different ones is sliced by number, others by bin."""

BINS = 10

Slice = dict[str, Any]
"""`column`, and `groups`: `value` or `low`, `high` and `last`; with `count` and `means`."""


def slices(table: pa.Table, metrics: Mapping[str, np.ndarray], classes: int) -> list[Slice]:
    """Returns a slice for each column that has one: those of the data first, the metrics last.

    Args:
      table: All rows.
      metrics: The columns whose means are taken.
      classes: How many classes there are: there may be more of them than other values.
    """
    others = [name for name in table.column_names if name not in metrics and name != "id"]
    own = [name for name in others if name not in ("label", "prediction", "confidence")]
    names = [*own, *(name for name in others if name not in own), *metrics]
    most = max(MOST_VALUES, classes)
    found = [
        (name, _groups(table[name], metrics, most if name in ("label", "prediction") else MOST_VALUES))
        for name in names
    ]
    return [{"column": name, "groups": groups} for name, groups in found if len(groups) > 1]


def _groups(column: pa.ChunkedArray, metrics: Mapping[str, np.ndarray], most: int) -> list[dict[str, Any]]:
    if pa.types.is_floating(column.type):  # a missing number is in no group of its own: NaN is not, and JSON has none
        column = pc.if_else(pc.is_finite(column), column, None)
    distinct = pc.count_distinct(column).as_py()
    if is_number(column.type) and distinct > (most if pa.types.is_integer(column.type) else FEW_NUMBERS):
        return _bins(floats(column), metrics)
    if distinct > max(most, len(column) // 2):
        return []  # names of the samples: a group for each says nothing
    return _values(column, metrics, most)


def _values(column: pa.ChunkedArray, metrics: Mapping[str, np.ndarray], most: int) -> list[dict[str, Any]]:
    encoded = column.combine_chunks().dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = [value if is_number(column.type) else spelled(value) for value in encoded.dictionary.to_pylist()]
    sizes = np.bincount(numbers[numbers >= 0], minlength=len(values))
    kept = np.argsort(-sizes, kind="stable")[:most]
    kept = kept[np.argsort([values[i] for i in kept], kind="stable")] if is_number(column.type) else kept
    place = np.full(len(values) + 1, len(kept))  # whatever is not kept, and -1 as well, goes to the end
    place[kept] = np.arange(len(kept))
    rest = bool(len(values) > len(kept) or (numbers < 0).any())
    groups = [{"value": values[i]} for i in kept.tolist()] + ([{"rest": True}] if rest else [])
    return _measured(groups, place[numbers], metrics)


def _bins(values: np.ndarray, metrics: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Returns bins that hold about as many rows each; equal numbers are never torn apart."""
    known = values[np.isfinite(values)]
    edges = np.unique(np.quantile(known, np.linspace(0, 1, BINS + 1), method="lower"))
    if len(edges) < 2:
        return []
    groups = [{"low": low, "high": high} for low, high in zip(edges.tolist(), edges.tolist()[1:], strict=False)]
    groups[-1]["last"] = True
    numbers = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(groups) - 1)
    return _measured(groups, np.where(np.isfinite(values), numbers, -1), metrics)


def _measured(
    groups: list[dict[str, Any]], numbers: np.ndarray, metrics: Mapping[str, np.ndarray]
) -> list[dict[str, Any]]:
    sizes = np.bincount(numbers[numbers >= 0], minlength=len(groups)).tolist()
    means = [group_means(numbers, len(groups), values) for values in metrics.values()]
    return [group | {"count": sizes[i], "means": [column[i] for column in means]} for i, group in enumerate(groups)]
