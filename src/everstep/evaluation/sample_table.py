"""The rows of an evaluation: written as CSV and Parquet, and summarized.

Rows are buffered until there are enough for a chunk, and written in order: memory does not grow with their number.
"""

import csv
import io
import math
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from everstep.data.formats import open_parquet, read_parquet
from everstep.errors import UsageError
from everstep.evaluation.sample_metric import RESERVED

CHUNK = 32_768
"""Rows per chunk, and per row group of the Parquet file: some megabytes."""


class Table:
    """Takes rows in batches and writes them in chunks; the files are complete, and on disk, when the block ends.

    Example:
      with Table(csv_file, parquet_file, ["loss"]) as table:
          table.add(["a", "b"], {"loss": losses}, {"label": labels}, {"camera": ["left", "right"]})

    Args:
      csv_file: A file opened with `newline=""`, for the ids, under an empty header as in pandas, and the metrics.
      parquet_file: An open file, for the same as `id` and float64 columns, and all other columns.
      metrics: The names of the metrics, in order.
    """

    def __init__(self, csv_file: TextIO, parquet_file: BinaryIO, metrics: Sequence[str]):
        self._metrics = list(metrics)
        self._files = csv_file, parquet_file
        self._rows = csv.writer(csv_file, lineterminator="\n")
        self._rows.writerow(["", *self._metrics])
        self._writer: pq.ParquetWriter | None = None
        self._ids: list[str] = []
        self._pieces: dict[str, list[np.ndarray]] = {}
        self._columns: dict[str, list[Any]] = {}

    def __enter__(self) -> "Table":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._ids:
                self._flush()
        finally:
            if self._writer is not None:
                self._writer.close()  # even after a failure: it warns if it is garbage-collected open
        if kind is None:
            for file in self._files:
                file.flush()
                os.fsync(file.fileno())

    def add(
        self,
        ids: list[str],
        metrics: Mapping[str, np.ndarray],
        outcome: Mapping[str, np.ndarray],
        columns: Mapping[str, list[Any]],
    ) -> None:
        """Adds one batch; every batch has the same names.

        Args:
          ids: One id per row.
          metrics: A number for each row, by metric.
          outcome: `label`, `prediction` and `confidence`, as numbers or texts; a negative integer is a missing value.
          columns: The user's columns, of any scalar type.
        """
        self._ids += ids
        for name, numbers in {**metrics, **outcome}.items():
            self._pieces.setdefault(name, []).append(numbers)
        for name, values in columns.items():
            self._columns.setdefault(name, []).extend(values)
        if len(self._ids) >= CHUNK:
            self._flush()

    def _flush(self) -> None:
        arrays = {name: np.concatenate(pieces) for name, pieces in self._pieces.items()}
        self._rows.writerows(zip(self._ids, *(arrays[name].tolist() for name in self._metrics), strict=True))
        self._write_parquet(arrays)
        self._ids, self._pieces, self._columns = [], {}, {}

    def _write_parquet(self, arrays: Mapping[str, np.ndarray]) -> None:
        found = {"id": pa.array(self._ids, pa.string()), **{name: _column(a) for name, a in arrays.items()}}
        found |= {name: _scalars(name, values) for name, values in self._columns.items()}
        if self._writer is None:
            self._writer = pq.ParquetWriter(self._files[1], pa.table(found).schema)
        wider = [name for name in self._columns if _is_wider(found[name].type, self._writer.schema.field(name).type)]
        if wider:
            self._writer = self._rewritten(self._writer, wider)
        schema = self._writer.schema
        fitting = {name: _as_before(name, found[name], schema.field(name).type) for name in schema.names}
        self._writer.write_table(pa.table(fitting, schema=schema), row_group_size=CHUNK)

    def _rewritten(self, writer: pq.ParquetWriter, wider: Sequence[str]) -> pq.ParquetWriter:
        """Rewrites the rows so far, a chunk at a time, with the integers of these columns as floats."""
        writer.close()
        file = self._files[1]
        file.flush()
        with tempfile.TemporaryFile(dir=os.path.dirname(file.name)) as copy:
            with open(file.name, "rb") as former:
                shutil.copyfileobj(former, copy)
            file.seek(0)
            file.truncate()
            return _copied(open_parquet(copy), file, wider)


def check_columns(columns: Sequence[str], metrics: Sequence[str]) -> None:
    """Checks that the user's columns have unique names.

    Raises:
      UsageError: One has the name of a metric or of a reserved column.
    """
    for name in columns:
        if not name.strip() or name in RESERVED or name in metrics:
            taken = "a metric" if name in metrics else "a column of the table"
            raise UsageError(f"is {taken}", key="columns", received=name, remedy="give the column another name")


def _column(values: np.ndarray) -> pa.Array:
    """Returns numbers or texts; a negative integer is a missing value."""
    if values.dtype == object:
        return pa.array(values, pa.string())
    return pa.array(values, mask=values < 0 if values.dtype.kind == "i" else None)


def _scalars(name: str, values: list[Any]) -> pa.Array:
    try:
        array = pa.array(values)
    except (pa.ArrowException, OverflowError) as error:
        raise UsageError(f"has values of different types: {error}", key=f"columns.{name}") from error
    return array.cast(pa.string()) if pa.types.is_null(array.type) else array


def _is_wider(now: pa.DataType, before: pa.DataType) -> bool:
    return pa.types.is_floating(now) and pa.types.is_integer(before)


def _copied(source: pq.ParquetFile, file: BinaryIO, wider: Sequence[str]) -> pq.ParquetWriter:
    """Returns a writer to which the source has been copied, with some of its columns as floats."""
    fields = [field.with_type(pa.float64()) if field.name in wider else field for field in source.schema_arrow]
    writer = pq.ParquetWriter(file, pa.schema(fields))
    try:
        for number in range(source.num_row_groups):
            rows = source.read_row_group(number)
            fitting = {field.name: _as_before(field.name, rows[field.name], field.type) for field in fields}
            writer.write_table(pa.table(fitting, schema=writer.schema), row_group_size=CHUNK)
    except BaseException:
        writer.close()
        raise
    return writer


def _as_before(name: str, array: pa.Array | pa.ChunkedArray, type_: pa.DataType) -> Any:
    try:
        return array.cast(type_)
    except pa.ArrowException as error:
        raise UsageError(f"was {type_} at first and is {array.type} now", key=f"columns.{name}") from error


BINS = 50
STATISTICS = ("count", "mean", "std", "min", "25%", "50%", "75%", "max")


@dataclass(frozen=True)
class Summary:
    """Statistics and histogram of a column, without its NaNs; a statistic is NaN if no value is left.

    Attributes:
      values: The statistics of pandas' `describe()`, by its names.
      edges: The edges of the histogram's bins.
      counts: The number of values in each bin.
    """

    values: dict[str, float]
    edges: list[float]
    counts: list[int]

    @property
    def mean(self) -> float:
        """The mean over the samples that have a value."""
        return self.values["mean"]

    @property
    def count(self) -> int:
        """The number of samples that have a value."""
        return int(self.values["count"])


def summarize(values: np.ndarray) -> Summary:
    """Returns the summary of a column of finite numbers and NaN."""
    known = values[~np.isnan(values)]
    edges = _edges(known)
    counts, _ = np.histogram(known, edges)
    return Summary(_statistics(known), edges.tolist(), counts.tolist())


def read_column(path: Path, name: str) -> np.ndarray:
    """Returns a metric's column from a Parquet file."""
    return read_parquet(path, [name])[name].to_numpy()


def as_csv(summaries: Mapping[str, Summary]) -> str:
    """Returns the table that pandas' `describe().to_csv()` writes: a row per statistic, a column per metric."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["", *summaries])
    for name in STATISTICS:
        rows.writerow([name, *("" if np.isnan(s.values[name]) else s.values[name] for s in summaries.values())])
    return text.getvalue()


def _statistics(known: np.ndarray) -> dict[str, float]:
    if not known.size:
        return dict.fromkeys(STATISTICS, math.nan) | {"count": 0.0}
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = known.std(ddof=1) if known.size > 1 else math.nan
        quartiles = np.quantile(known, [0.25, 0.5, 0.75])
        numbers = (known.size, known.mean(), deviation, known.min(), *quartiles, known.max())
    return dict(zip(STATISTICS, map(float, numbers), strict=True))


def _edges(known: np.ndarray) -> np.ndarray:
    """Returns the edges of the bins, from the smallest value to the largest; around a single value, with a margin."""
    low, high = (known.min(), known.max()) if known.size else (0.0, 1.0)
    edges = _spaced(low, high)
    if edges[0] < edges[1]:
        return edges
    margin = max(0.5, 1e-6 * abs(low))
    return _spaced(low - margin, high + margin)


def _spaced(low: float, high: float) -> np.ndarray:
    return 2 * np.linspace(low / 2, high / 2, BINS + 1)  # halved: the difference of two floats may overflow
