"""Tables in CSV and Parquet files, by their columns: as Arrow's tables, or some rows at a time.

Where rows are read by their number instead, `everstep.data.records` reads CSV by itself, and Parquet through this file.
"""

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO

from everstep.data.formats.bad_file import BadFile, in_one_line

CSV_SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz")
PARQUET_SUFFIXES = (".parquet", ".pq")

_BUFFER = 1 << 20


def separator(path: str | os.PathLike[str]) -> str:
    """Returns what separates the values of a table by the name of its file: a tab in `.tsv`, else a comma."""
    return "\t" if os.fspath(path).lower().endswith((".tsv", ".tsv.gz")) else ","


@dataclasses.dataclass(frozen=True)
class CsvOptions:
    """How a CSV file is read.

    Attributes:
      columns: The columns to read; None for all.
      types: Arrow's types of columns; others follow from the content, of a file in pieces from that of the first one.
      separator: What separates values; by default as the function of this name says.
      names: The names of the columns, where the first line has values already.
      skip_rows: How many lines at the top are left out.
      encoding: That of the file.
      quote: What encloses text.
      decimal: What separates the decimals.
      missing: What stands for a missing value; by default, what Arrow knows.
      text_may_be_missing: Whether text may be a missing value, too; not in quotes.
    """

    columns: Sequence[str] | None = None
    types: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    separator: str | None = None
    names: Sequence[str] | None = None
    skip_rows: int = 0
    encoding: str = "utf-8"
    quote: str = '"'
    decimal: str = "."
    missing: Sequence[str] | None = None
    text_may_be_missing: bool = False

    def arguments(self, path: str | os.PathLike[str]) -> tuple[Any, ...]:
        """Returns the arguments of Arrow's functions that read a file."""
        from pyarrow import csv

        missing = {} if self.missing is None else {"null_values": list(self.missing)}
        return (
            os.fspath(path),
            csv.ReadOptions(column_names=self.names, skip_rows=self.skip_rows, encoding=self.encoding),
            csv.ParseOptions(
                delimiter=self.separator or separator(path), quote_char=self.quote, newlines_in_values=True
            ),
            csv.ConvertOptions(
                column_types=dict(self.types),
                include_columns=None if self.columns is None else list(self.columns),
                decimal_point=self.decimal,
                strings_can_be_null=self.text_may_be_missing,
                quoted_strings_can_be_null=not self.text_may_be_missing,
                **missing,
            ),
        )


def read_csv(path: str | os.PathLike[str], options: CsvOptions) -> Any:
    """Returns the `pyarrow.Table` of a CSV file.

    Raises:
      BadFile: It cannot be read, or is no such table.
    """
    from pyarrow import csv

    with as_bad_file():
        return csv.read_csv(*options.arguments(path))


@contextlib.contextmanager
def open_csv(path: str | os.PathLike[str], options: CsvOptions) -> Iterator[Any]:
    """Opens a CSV file as a `pyarrow.csv.CSVStreamingReader`, which has some rows in memory at a time.

    Raises:
      BadFile: It cannot be read, or is no such table.
    """
    from pyarrow import csv

    with as_bad_file(), csv.open_csv(*options.arguments(path)) as reader:
        yield reader


def read_parquet(path: str | os.PathLike[str], columns: Sequence[str] | None = None) -> Any:
    """Returns the `pyarrow.Table` of a Parquet file, or of a folder of such files.

    Checksums are verified, where the file has them.

    Raises:
      BadFile: It is damaged, or no such file.
    """
    from pyarrow import parquet

    with as_bad_file():
        return parquet.read_table(
            path,
            columns=None if columns is None else list(columns),
            partitioning="hive" if os.path.isdir(path) else None,  # the folders above a file say nothing about it
            page_checksum_verification=True,
        )


def open_parquet(path: str | os.PathLike[str] | BinaryIO) -> Any:
    """Returns a `pyarrow.parquet.ParquetFile`, to read some rows at a time; checksums are verified, where it has them.

    What is read from it later is to be read inside of `as_bad_file`.

    Raises:
      BadFile: It is no such file.
    """
    from pyarrow import parquet

    with as_bad_file():
        # Arrow's defaults would hold all of a file that was read, and without a buffer a whole row group.
        return parquet.ParquetFile(path, pre_buffer=False, buffer_size=_BUFFER, page_checksum_verification=True)


@contextlib.contextmanager
def as_bad_file() -> Iterator[None]:
    """Turns what Arrow raises inside the block into `BadFile`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise BadFile(in_one_line(error)) from error
