"""The evaluation of a run on one split, for the report: the table, classes, residuals and slices.

All numbers are over all rows. The table has all rows; if they are too many, the worst and evenly chosen others.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from everstep import storage
from everstep.data.formats import BadFile, read_parquet
from everstep.errors import UsageError
from everstep.evaluation import FORMAT, summarize
from everstep.report.numbers import finite, group_means, listed

MOST_ROWS = 20_000
WORST_ROWS = 5_000
"""If there are more than `MOST_ROWS`, the number of rows chosen because they are the worst by some metric."""

LETTERS = 200
"""Longer texts are cut."""


def table_data(
    table: pa.Table, page: Mapping[str, Any], metrics: Mapping[str, np.ndarray], changes: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Returns the table by columns.

    Args:
      table: All rows.
      page: The content of `<split>.json`.
      metrics: The metrics' columns.
      changes: Further columns, with a value for each row.
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
    """Returns the rows to show, in order: the worst by each metric, those with pictures, and evenly chosen others."""
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
    """Returns the rows with the worst values; without `better`, low values are good."""
    badness = -values if better == "higher" else values
    order = np.argsort(np.where(np.isnan(badness), -np.inf, badness), kind="stable")[::-1][:count]
    return order[~np.isnan(values[order])]


def floats(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a numeric column as floats, with NaN for missing values."""
    return column.cast(pa.float64()).to_numpy().astype(np.float64)


def plain(column: pa.ChunkedArray) -> list[Any]:
    """Returns a column for JSON: numbers, or shortened texts; None for values that are missing or not finite."""
    if pa.types.is_floating(column.type):
        return listed(floats(column))
    values = column.to_pylist()
    if is_number(column.type):
        return values
    return [None if value is None else spelled(value) for value in values]


def is_number(type_: pa.DataType) -> bool:
    """Returns whether values of a type are numbers, which can be ordered and binned."""
    return pa.types.is_integer(type_) or pa.types.is_floating(type_)


def spelled(value: Any) -> str:
    """Returns a value that is not a number as a shortened text."""
    if isinstance(value, bool):
        return str(value).lower()
    text = value.decode("utf-8", errors="backslashreplace") if isinstance(value, bytes) else str(value)
    return text if len(text) <= LETTERS else f"{text[: LETTERS - 1]}…"


def _order(table: pa.Table, metrics: Mapping[str, np.ndarray]) -> list[str]:
    """Returns the columns in the order of display: id, label, prediction, confidence, metrics, the rest."""
    first = [name for name in ("id", "label", "prediction", "confidence") if name in table.column_names]
    return list(dict.fromkeys([*first, *metrics, *table.column_names]))


def _type(name: str, table: pa.Table, page: Mapping[str, Any]) -> str:
    if page["kind"] == "classification" and name in ("label", "prediction"):
        return "class"
    return "number" if is_number(table[name].type) else "text"


def by_class(table: pa.Table, metrics: Mapping[str, np.ndarray], names: Sequence[str] | None) -> list[dict[str, Any]]:
    """Returns a row for each class that is a label or a prediction, over all samples.

    An undefined ratio (the precision of a class that was never predicted) is None.

    Args:
      table: A table with `label` and `prediction`.
      metrics: The columns to average over the samples with the class as their label.
      names: The names of all classes; None if they have only numbers.
    """
    labels, predicted = class_numbers(table["label"]), class_numbers(table["prediction"])
    count = max(len(names or ()), int(max(labels.max(initial=-1), predicted.max(initial=-1))) + 1)
    support, claimed, right = (_sizes(numbers, count) for numbers in (labels, predicted, labels[labels == predicted]))
    precision, recall, f1 = _shares(right, claimed), _shares(right, support), _shares(2 * right, claimed + support)
    means = {name: group_means(labels, count, values) for name, values in metrics.items()}
    return [
        {
            "class": i,
            "support": int(support[i]),
            "precision": precision[i],
            "recall": recall[i],
            "f1": f1[i],
            "means": [means[name][i] for name in metrics],
        }
        for i in range(count)
        if support[i] or claimed[i]
    ]


def sparse(confusion: Sequence[Sequence[int]] | None) -> dict[str, Any] | None:
    """Returns a confusion matrix as its `size` and its non-zero `cells`: label, prediction, count."""
    if confusion is None:
        return None
    matrix = np.asarray(confusion, np.int64)
    labels, predicted = np.nonzero(matrix)
    return {"size": len(matrix), "cells": np.stack([labels, predicted, matrix[labels, predicted]], axis=1).tolist()}


def class_numbers(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a column of classes as integers, with -1 for missing values."""
    return column.cast(pa.int64()).fill_null(-1).to_numpy()


def _sizes(numbers: np.ndarray, count: int) -> np.ndarray:
    return np.bincount(numbers[numbers >= 0], minlength=count)


def _shares(part: np.ndarray, whole: np.ndarray) -> list[float | None]:
    with np.errstate(invalid="ignore", divide="ignore"):
        return listed(part / whole)


def residuals(table: pa.Table) -> dict[str, Any] | None:
    """Returns a histogram of prediction minus label, and its statistics; None if no row has a finite difference.

    Differences of very large numbers, or their squares, may overflow: such a statistic is None.
    """
    labels, predicted = floats(table["label"]), floats(table["prediction"])
    with np.errstate(over="ignore", invalid="ignore"):
        distances = predicted - labels
        known = np.isfinite(distances)
        return _residual_statistics(labels[known], distances[known]) if known.any() else None


def _residual_statistics(labels: np.ndarray, distances: np.ndarray) -> dict[str, Any]:
    found = summarize(distances)
    return {
        "histogram": {"edges": found.edges, "counts": found.counts},
        "count": found.count,
        "bias": finite(found.mean),
        "mae": finite(np.abs(distances).mean()),
        "rmse": finite(np.sqrt((distances**2).mean())),
        "r2": _explained(labels, distances),
    }


def _explained(labels: np.ndarray, distances: np.ndarray) -> float | None:
    """Returns the share of the labels' variance that predictions explain; None if all labels are the same."""
    variance = float(((labels - labels.mean()) ** 2).sum())
    return finite(1 - float((distances**2).sum()) / variance) if variance else None


MOST_VALUES = 40
"""With more values, the most frequent ones are shown and the others form one group."""

FEW_NUMBERS = 12
"""A column of numbers with at most this many distinct values is sliced by value, others by bin."""

BINS = 10

Slice = dict[str, Any]
"""`column`, and `groups`: `value` or `low`, `high` and `last`; with `count` and `means`."""


def slices(table: pa.Table, metrics: Mapping[str, np.ndarray], classes: int) -> list[Slice]:
    """Returns a slice for each column with several groups: the data's columns first, the metrics last.

    Args:
      table: All rows.
      metrics: The columns to average in each group.
      classes: The number of classes, which may be more than the groups of other columns.
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
    if pa.types.is_floating(column.type):  # NaN and infinity count as missing: JSON has neither
        column = pc.if_else(pc.is_finite(column), column, None)
    distinct = pc.count_distinct(column).as_py()
    if is_number(column.type) and distinct > (most if pa.types.is_integer(column.type) else FEW_NUMBERS):
        return _bins(floats(column), metrics)
    if distinct > max(most, len(column) // 2):
        return []  # almost a group per sample, as for file names
    return _values(column, metrics, most)


def _values(column: pa.ChunkedArray, metrics: Mapping[str, np.ndarray], most: int) -> list[dict[str, Any]]:
    encoded = column.combine_chunks().dictionary_encode()
    numbers = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    values = [value if is_number(column.type) else spelled(value) for value in encoded.dictionary.to_pylist()]
    sizes = np.bincount(numbers[numbers >= 0], minlength=len(values))
    kept = np.argsort(-sizes, kind="stable")[:most]
    kept = kept[np.argsort([values[i] for i in kept], kind="stable")] if is_number(column.type) else kept
    place = np.full(len(values) + 1, len(kept))  # values that are not kept, and -1, go to the last group
    place[kept] = np.arange(len(kept))
    rest = bool(len(values) > len(kept) or (numbers < 0).any())
    groups = [{"value": values[i]} for i in kept.tolist()] + ([{"rest": True}] if rest else [])
    return _measured(groups, place[numbers], metrics)


def _bins(values: np.ndarray, metrics: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """Returns bins with about the same number of rows each; equal values stay in one bin."""
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


_FIRST = ("test", "validation")


@dataclasses.dataclass
class Split:
    """The evaluation on one split.

    Attributes:
      page: The content of `<split>.json`.
      table: A row per sample, in the order of the data; None if the file is missing.
      changes: Further columns from a comparison, with a number for each row.
    """

    page: Mapping[str, Any]
    table: pa.Table | None
    changes: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of the split; of a part of it with how many samples: `test, 5 of 255 samples`."""
        return split_name(self.page)

    @property
    def metrics(self) -> list[str]:
        """The names of the metrics, in order."""
        return [metric["name"] for metric in self.page["metrics"]]

    def as_data(self) -> dict[str, Any]:
        """Returns the split as the page reads it."""
        same = ("kind", "rows", "classes", "metrics", "samples")
        return (
            {"split": self.name}
            | {name: self.page[name] for name in same}
            | {
                "confusion": sparse(self.page["confusion"]),
                **self._over_all_rows(),
            }
        )

    def _over_all_rows(self) -> dict[str, Any]:
        if self.table is None:
            return {"table": None, "slices": [], "by_class": [], "residuals": None}
        metrics = {name: floats(self.table[name]) for name in self.metrics}
        classified = self._is("classification")
        class_count = len(self.page["classes"] or self.page["confusion"] or ()) if classified else 0
        return {
            "table": table_data(self.table, self.page, metrics, self.changes),
            "slices": slices(self.table, metrics, class_count),
            "by_class": by_class(self.table, metrics, self.page["classes"]) if classified else [],
            "residuals": residuals(self.table) if self._is("regression") else None,
        }

    def _is(self, kind: str) -> bool:
        has_outcome = self.table is not None and {"label", "prediction"} <= set(self.table.column_names)
        return self.page["kind"] == kind and has_outcome


def read_splits(directory: Path) -> list[Split]:
    """Returns the evaluations in a directory of reports, the test data first; other JSON files are ignored.

    Raises:
      UsageError: A file is damaged, or has the format of another version.
    """
    splits = [_read_split(path, page) for path, page in read_pages(directory)]

    def place(split: Split) -> int:
        name = split.page["split"]
        return _FIRST.index(name) if name in _FIRST else len(_FIRST)

    return sorted(splits, key=place)


def split_name(page: Mapping[str, Any]) -> str:
    """Returns what an evaluation is called: its split, and of a part of that how many samples it has.

    Evaluations of other samples have other names, so that they are not compared.
    """
    if "part_of" not in page:
        return str(page["split"])
    rows, of = page["rows"], page["part_of"]
    return f"{page['split']}, " + (f"{rows:,} of {of:,} samples" if of else f"the first {rows:,} samples")


def read_pages(directory: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Returns the content of each `<split>.json` with its path; other JSON files are ignored.

    Raises:
      UsageError: A file is damaged, or has the format of another version.
    """
    files = [(path, storage.read_json(path)) for path in sorted(directory.glob("*.json"))]
    found = [(path, page) for path, page in files if isinstance(page, dict) and {"format", "split"} <= page.keys()]
    for path, page in found:
        if page["format"] != FORMAT:
            raise UsageError(
                f"has format {page['format']!r}, this version reads {FORMAT}",
                key="reports",
                received=str(path),
                remedy="evaluate again",
            )
    return found


def _read_split(path: Path, page: Mapping[str, Any]) -> Split:
    table = _table(path.with_suffix(".parquet"))
    if table is not None and table.num_rows != page["rows"]:
        raise UsageError(
            f"has {page['rows']} samples, the Parquet file beside it {table.num_rows}: they differ",
            key="reports",
            received=str(path),
            remedy="evaluate again",
        )
    return Split(page, table)


def _table(path: Path) -> pa.Table | None:
    if not path.is_file():
        return None
    try:
        return read_parquet(path)
    except BadFile as error:
        raise UsageError(
            f"cannot be read: {error}", key="reports", received=str(path), remedy="evaluate again"
        ) from error
