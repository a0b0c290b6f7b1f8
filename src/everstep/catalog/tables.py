"""Tables: CSV and Parquet, by Arrow; as a pandas DataFrame unless something else is asked for."""

import importlib.util
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep.catalog.dataset import Dataset
from everstep.config.problem import show
from everstep.errors import UsageError, nearest

FORMS = ("pandas", "arrow", "columns")
_TYPES = {"str": "string", "text": "string", "int": "int64", "float": "float64", "datetime": "timestamp[us]"}


class Csv(Dataset):
    """A text file of rows, whose first line names the columns.

    Numbers keep every digit, and text that is empty stays apart from what is missing. Columns get their types from
    what is in them, so text that looks like numbers becomes numbers: `dtype: {zip: text}` keeps it.
    """

    suffixes = (".csv", ".csv.gz", ".tsv")

    def load(
        self,
        path: Path,
        *,
        sep: str | None = None,
        names: Sequence[str] | None = None,
        usecols: Sequence[str] | None = None,
        dtype: Mapping[str, str] | None = None,
        na_values: Sequence[str] | None = None,
        decimal: str = ".",
        quotechar: str = '"',
        skiprows: int = 0,
        encoding: str = "utf-8",
        form: str = "pandas",
    ) -> Any:
        """Returns the table.

        Args:
          path: The file.
          sep: Between values; a comma, or a tab in a `.tsv` file.
          names: Of the columns, where the first line has values already.
          usecols: The columns to read.
          dtype: Types of columns: `text`, `int64`, `float32`, `bool`, `datetime`, any other of Arrow's.
          na_values: What stands for a missing value, besides nothing.
          decimal: What separates the decimals.
          quotechar: What encloses text.
          skiprows: How many lines to leave out at the top.
          encoding: Of the file.
          form: `pandas` for a DataFrame, `arrow` for a `pyarrow.Table`, `columns` for NumPy arrays by name.
        """
        from pyarrow import csv

        _require_form(form)
        nulls = {} if na_values is None else {"null_values": ["", *map(str, na_values)]}
        table = csv.read_csv(
            str(path),
            csv.ReadOptions(column_names=names, skip_rows=skiprows, encoding=encoding),
            csv.ParseOptions(delimiter=sep or _separator(path), quote_char=quotechar, newlines_in_values=True),
            csv.ConvertOptions(
                column_types={name: arrow_type(alias) for name, alias in (dtype or {}).items()},
                include_columns=list(usecols) if usecols is not None else None,
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
                decimal_point=decimal,
                **nulls,
            ),
        )
        return given(table, form)

    def save(self, value: Any, path: Path, *, sep: str | None = None, header: bool = True, index: bool = False) -> None:
        """Writes a table; `index` writes the index of a DataFrame as well."""
        import pyarrow as pa
        from pyarrow import csv

        options = csv.WriteOptions(include_header=header, delimiter=sep or _separator(path))
        with pa.output_stream(str(path), compression="detect") as stream:
            csv.write_csv(as_table(value, index), stream, options)


class Parquet(Dataset):
    """A file of columns with their types; the index of a DataFrame is kept."""

    suffixes = (".parquet", ".pq")

    def load(self, path: Path, *, columns: Sequence[str] | None = None, form: str = "pandas") -> Any:
        """Returns the table, or some of its columns, in the form that `Csv.load` describes."""
        from pyarrow import parquet

        _require_form(form)
        return given(parquet.read_table(path, columns=list(columns) if columns is not None else None), form)

    def save(self, value: Any, path: Path, *, compression: str = "zstd") -> None:
        """Writes a table; compressions are `zstd`, `snappy`, `gzip`, `none`."""
        from pyarrow import parquet

        parquet.write_table(as_table(value, None), path, compression=compression)


def as_table(value: Any, index: bool | None) -> Any:
    """Returns a DataFrame, a `pyarrow.Table` or columns by name as a `pyarrow.Table`.

    Raises:
      UsageError: It is none of them.
    """
    import pyarrow as pa

    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return pa.Table.from_pandas(value, preserve_index=index)
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return pa.table(dict(value))
    raise UsageError(f"expected a DataFrame, a pyarrow.Table or columns by name, received {show(value)}")


def given(table: Any, form: str) -> Any:
    """Returns a `pyarrow.Table` in the form that was asked for."""
    if form == "pandas":
        return table.to_pandas()
    return table if form == "arrow" else {name: table[name].to_numpy() for name in table.column_names}


def arrow_type(alias: str) -> Any:
    """Returns Arrow's type for a name such as `int64` or `text`."""
    import pyarrow as pa

    try:
        return pa.type_for_alias(_TYPES.get(alias, alias))
    except (ValueError, AttributeError):
        known = [*_TYPES, "int32", "float32", "bool", "date32"]
        raise UsageError(f"load_args.dtype: unknown type {show(alias)}; {nearest(str(alias), known)}") from None


def _require_form(form: str) -> None:
    if form not in FORMS:
        raise UsageError(f"load_args.form: received {show(form)}; {nearest(str(form), FORMS)}")
    if form == "pandas" and importlib.util.find_spec("pandas") is None:
        raise UsageError("a DataFrame needs pandas: pip install pandas, or say load_args: {form: columns}")


def _separator(path: Path) -> str:
    return "\t" if path.suffix == ".tsv" else ","
