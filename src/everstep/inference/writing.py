"""Rows into a CSV or Parquet file, batch by batch; the file takes its name when the last one is in."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from everstep import storage
from everstep.errors import TrainingError, UsageError

Write = Callable[[Mapping[str, Any]], None]

_KINDS = (".csv", ".parquet", ".pq")


def check_output(path: str) -> Path:
    """Returns where to write; checks it before anything is computed.

    Raises:
      UsageError: It is of no known kind, there already, or in a folder that is not there or cannot be written to.
    """
    place = Path(path)
    if place.suffix.lower() not in _KINDS:
        raise UsageError(f"--output: received {path!r}, expected a name that ends with .csv or .parquet")
    if place.is_dir():
        raise UsageError(f"--output: {path!r} is a directory: name a file in it")
    if place.exists() or place.is_symlink():
        raise UsageError(f"--output: {path!r} is there already: remove it, or name another file")
    if not place.parent.is_dir():
        raise UsageError(f"--output: there is no folder {str(place.parent)!r} for it: make it first")
    try:
        storage.prepare_directory(place.parent)
    except UsageError as error:
        raise UsageError(f"--output: {error}") from error
    return place


@contextlib.contextmanager
def open_output(path: Path) -> Iterator[Write]:
    """Yields a function that appends rows; when the block fails, nothing is left of them.

    Raises:
      TrainingError: The disk does not take them.
    """
    with _on_disk(path), storage.atomic_path(path) as temporary, contextlib.ExitStack() as stack:
        writers: list[Any] = []

        def write(rows: Mapping[str, Any]) -> None:
            batch = pa.RecordBatch.from_pydict(dict(rows), schema=writers[0].schema if writers else None)
            if not writers:
                writers.append(stack.enter_context(_Writer(path.suffix.lower(), temporary, batch.schema)))
            writers[0].write(batch)

        yield write


@contextlib.contextmanager
def _on_disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:  # of Arrow, too; reading has its own
        raise TrainingError(f"--output: {str(path)!r} cannot be written: {error.strerror or error}") from error


class _Writer:
    """One of Arrow's writers, with the schema of the first rows."""

    def __init__(self, suffix: str, path: Path, schema: pa.Schema) -> None:
        self.schema = schema
        options = pacsv.WriteOptions(quoting_style="needed", quoting_header="none")
        self._inner = (
            pacsv.CSVWriter(path, schema, write_options=options) if suffix == ".csv" else pq.ParquetWriter(path, schema)
        )

    def write(self, batch: pa.RecordBatch) -> None:
        """Appends rows."""
        self._inner.write_batch(batch)

    def __enter__(self) -> "_Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self._inner.close()
