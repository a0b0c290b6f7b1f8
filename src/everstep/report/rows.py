"""The rows that the page's table has: all of them, or where there are too many the worst and an even sample."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from everstep.report.numbers import listed

MOST_ROWS = 20_000
WORST_ROWS = 5_000
"""Of more rows than a page can hold, how many are there because they are the worst by some metric."""

LETTERS = 200
"""Of longer texts the beginning."""


def table_data(
    table: pa.Table, page: Mapping[str, Any], metrics: Mapping[str, np.ndarray], changes: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Returns the table by columns.

    Args:
      table: All rows.
      page: What the evaluation says of them.
      metrics: The columns that are metrics.
      changes: Further columns, as long as the table.
    """
    chosen = choose(table.num_rows, page, metrics)
    some = table if len(chosen) == table.num_rows else table.take(pa.array(chosen))
    columns = [
        {"name": name, "type": _type(name, some, page), "values": plain(some[name])} for name in _order(table, metrics)
    ]
    columns += [{"name": name, "type": "number", "values": listed(changes[name][chosen])} for name in changes]
    whole = len(chosen) == table.num_rows
    return {"total": table.num_rows, "rows": None if whole else chosen.tolist(), "columns": columns}


def choose(count: int, page: Mapping[str, Any], metrics: Mapping[str, np.ndarray]) -> np.ndarray:
    """Returns which rows are shown, in order: the worst of each metric, those with pictures, and evenly some others."""
    if count <= MOST_ROWS:
        return np.arange(count)
    better = {metric["name"]: metric["better"] for metric in page["metrics"]}
    share = WORST_ROWS // max(1, len(metrics))
    worst = [worst_rows(values, better[name], share) for name, values in metrics.items()]
    wanted = np.unique(np.concatenate([*worst, [sample["row"] for sample in page["samples"]]]).astype(np.int64))
    others = np.setdiff1d(np.arange(count), wanted, assume_unique=True)
    even = np.linspace(0, len(others) - 1, MOST_ROWS - len(wanted)).astype(np.int64)
    return np.sort(np.concatenate([wanted, others[even]]))


def worst_rows(values: np.ndarray, better: str | None, count: int) -> np.ndarray:
    """Returns the rows with the worst values; where nobody says what is better, lower is."""
    badness = -values if better == "higher" else values
    order = np.argsort(np.where(np.isnan(badness), -np.inf, badness), kind="stable")[::-1][:count]
    return order[~np.isnan(values[order])]


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a numeric column as floats, with NaN for what is missing."""
    return column.cast(pa.float64()).to_numpy().astype(np.float64)


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Returns a column as JSON knows it: numbers, or texts of some length; None for what is missing or not finite."""
    if pa.types.is_floating(column.type):
        return listed(floats(column))
    values = column.to_pylist()
    if is_number(column.type):
        return values
    return [None if value is None else spelled(value) for value in values]


def is_number(type_: pa.DataType) -> bool:
    """Returns whether values of a type are numbers, to be ordered and binned."""
    return pa.types.is_integer(type_) or pa.types.is_floating(type_)


def spelled(value: Any) -> str:
    """Returns a value that is no number as a text of some length."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _order(table: pa.Table, metrics: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the columns as a reader wants them: what it is, what was said, how good that was, the rest."""
    first = [name for name in ("id", "label", "prediction", "confidence") if name in table.column_names]
    return list(dict.fromkeys([*first, *metrics, *table.column_names]))


def _type(name: str, table: pa.Table, page: Mapping[str, Any]) -> str:
    if page["kind"] == "classification" and name in ("label", "prediction"):
        return "class"
    return "number" if is_number(table[name].type) else "text"
