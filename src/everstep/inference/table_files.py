"""CSV and Parquet files, read some rows at a time."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from everstep.errors import UsageError
from everstep.inference.specs import Spec, check

_ID = "id"
_BUFFER = 1 << 20


class TableFile:
    """A table: a column for each input of the model by its name, or a column for each value of its only input.

    Args:
      path: The file.
      specs: The model's inputs.
      without: Columns that are no inputs.

    Raises:
      UsageError: It cannot be read, or does not fit.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], without: Sequence[str] = ()) -> None:
        self._path, self._specs = path, list(specs)
        with self._readable():
            schema = self._schema()
            self.count = None if self._is_text else pq.read_metadata(path).num_rows
        self._id = next((name for name in schema.names if name.lower() == _ID), None)
        unknown = [name for name in without if name not in schema.names]
        if unknown:
            raise UsageError(f"--without {unknown[0]}: {str(path)!r} has no such column, but {_brief(schema.names)}")
        names = [name for name in schema.names if name not in (*without, self._id)]
        self._columns = [self._of(spec, names) for spec in specs]
        for spec, columns in zip(specs, self._columns, strict=True):
            self._check(spec, columns, schema)
        used = [name for columns in self._columns for name in columns]
        self._types = {name: _widest(schema.field(name).type, spec) for spec, name in self._pairs()}
        self._types |= {self._id: pa.string()} if self._id and self._is_text else {}
        self._used = list(dict.fromkeys([*([self._id] if self._id else []), *used]))

    def batches(self, size: int) -> Iterator[tuple[Sequence[Any], list[np.ndarray]]]:
        """Yields all rows in order, at most `size` at a time."""
        done = 0
        with self._readable():
            for read in self._read(size):
                for start in range(0, read.num_rows, size):
                    batch = read.slice(start, size)
                    ids = range(done, done + batch.num_rows)
                    done += batch.num_rows
                    yield (batch.column(self._id).to_pylist() if self._id else ids), self._arrays(batch, ids.start)

    @property
    def _is_text(self) -> bool:
        return not self._path.name.lower().endswith((".parquet", ".pq"))

    def _schema(self) -> pa.Schema:
        if not self._is_text:
            return pq.read_schema(self._path)
        with self._csv(pacsv.ConvertOptions()) as reader:
            return reader.schema

    def _read(self, size: int) -> Iterator[pa.RecordBatch]:
        """Yields the columns that are used, some rows at a time, however large the file is."""
        if not self._is_text:
            # Arrow's own choice would hold the whole file, and without a buffer all of a row group.
            with pq.ParquetFile(self._path, pre_buffer=False, buffer_size=_BUFFER) as file:
                yield from file.iter_batches(size, columns=self._used)
            return
        with self._csv(pacsv.ConvertOptions(column_types=self._types, include_columns=self._used)) as reader:
            yield from reader

    def _csv(self, options: pacsv.ConvertOptions) -> Any:
        """Opens the file; Arrow would take a column's type from the first rows alone, so `options` has to say it."""
        delimiter = "\t" if ".tsv" in self._path.name.lower() else ","
        parsing = pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
        return pacsv.open_csv(self._path, parse_options=parsing, convert_options=options)

    def _pairs(self) -> Iterator[tuple[Spec, str]]:
        for spec, columns in zip(self._specs, self._columns, strict=True):
            yield from ((spec, name) for name in columns)

    def _of(self, spec: Spec, names: list[str]) -> list[str]:
        """Returns the columns of an input."""
        if spec.name in names:
            return [spec.name]
        if len(self._specs) > 1:
            raise UsageError(f"--input: {str(self._path)!r} has no column {spec.name!r}, but {_brief(names)}")
        return names

    def _check(self, spec: Spec, columns: list[str], schema: pa.Schema) -> None:
        kinds = [schema.field(name).type for name in columns]
        single = len(columns) == 1 and _is_list(kinds[0])
        if not single and (spec.size or math.prod(size or 1 for size in spec.shape)) != len(columns):
            raise UsageError(
                f"--input: {str(self._path)!r} has {len(columns)} columns of values ({_brief(columns)}), but the input "
                f"{spec.name!r} of the model takes {spec}: leave columns out with --without NAME"
            )
        for name, kind in zip(columns, kinds, strict=True):
            if pa.types.is_null(kind):
                continue  # no value in the first rows: which is said of the first that is asked for
            inner = kind.value_type if _is_list(kind) else kind
            check(Spec(spec.name, (), spec.dtype), (), _numpy(inner), f"the column {name!r}")

    def _arrays(self, batch: pa.RecordBatch, first: int) -> list[np.ndarray]:
        return [self._array(batch, s, names, first) for s, names in zip(self._specs, self._columns, strict=True)]

    def _array(self, batch: pa.RecordBatch, spec: Spec, names: list[str], first: int) -> np.ndarray:
        for name in names:
            if batch.column(name).null_count:
                row = first + int(np.argmax(batch.column(name).is_null().to_numpy(zero_copy_only=False)))
                raise UsageError(f"--input: {str(self._path)!r} has no value in row {row}, column {name!r}")
        columns = [_values(batch.column(name)) for name in names]
        shape = [batch.num_rows, *(-1 if size is None else size for size in spec.shape)]
        try:
            return spec.cast((columns[0] if len(columns) == 1 else np.stack(columns, axis=1)).reshape(shape))
        except UsageError:
            raise
        except ValueError:
            raise UsageError(
                f"--input: {str(self._path)!r}, rows {first} and following: the values do not make up {spec}"
            ) from None

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError) as error:
            reason = (str(error).splitlines() or [""])[0]
            raise UsageError(f"--input: {str(self._path)!r} cannot be read: {reason}") from error


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _widest(kind: pa.DataType, spec: Spec) -> pa.DataType:
    """Returns as what a column of a text file is read: its first rows may hold whole numbers only, or nothing."""
    if spec.dtype == "string":
        return pa.string()
    if pa.types.is_boolean(kind):
        return kind
    return pa.int64() if spec.dtype.startswith(("int", "uint", "bool")) else pa.float64()


def _values(column: pa.Array) -> np.ndarray:
    flat = column.flatten() if _is_list(column.type) else column
    return flat.to_numpy(zero_copy_only=False)


def _numpy(kind: pa.DataType) -> np.dtype:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.dtype(str)
    try:
        return np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return np.dtype("V")


def _brief(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
