"""Rows of Parquet files, a row group at a time."""

import collections
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np

from everstep.data.formats.bad_file import BadFile
from everstep.data.formats.tables import as_bad_file, open_parquet
from everstep.data.records.records import Records, Row, require_columns
from everstep.errors import UsageError

_GROUPS_IN_MEMORY = 2  # row groups in memory: shuffled neighbours, or the border between two


class Parquet(Records):
    """The rows of one Parquet file.

    A row group is read whole, and the last two are kept, so reading in order reads each once. `chunks` has their
    ranges. Checksums of pages are verified, where the file has them.

    Args:
      path: The file.
      key: The configuration key that names it, for errors.
      columns: The columns to read; None for all.

    Raises:
      UsageError: It is not a Parquet file, or a column is missing.
    """

    _file: Any
    _recent_groups: collections.OrderedDict[int, Any]
    _lock: threading.Lock

    def __init__(self, path: str, key: str, columns: Sequence[str] | None = None) -> None:
        super().__init__(key)
        self._path = path
        self._reset()
        try:
            metadata, schema = self._open().metadata, self._open().schema_arrow
        except BadFile as error:
            raise UsageError(f"cannot be read as Parquet: {error}", key=key, received=path) from None
        require_columns(columns, schema.names, key, path)
        self._columns = tuple(schema.names if columns is None else columns)
        sizes = [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]
        self._ends = np.cumsum([0, *sizes])

    def __len__(self) -> int:
        return int(self._ends[-1])

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read."""
        return self._columns

    @property
    def files(self) -> Sequence[str]:
        """The file."""
        return [self._path]

    @property
    def chunks(self) -> Sequence[range]:
        """The row groups."""
        ends = self._ends.tolist()
        return [range(start, stop) for start, stop in zip(ends[:-1], ends[1:], strict=True) if stop > start]

    def where(self, number: int) -> str:
        """Returns the file, and the number of a row in it."""
        return f"{self._path}, row {number}"

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the rows of these numbers; each row group is read once."""
        wanted = np.asarray(numbers, np.int64)
        groups = np.searchsorted(self._ends, wanted, side="right") - 1
        result: list[Any] = [None] * len(wanted)
        for group in dict.fromkeys(groups.tolist()):
            places = np.flatnonzero(groups == group)
            rows = self._group(group).take(wanted[places] - self._ends[group]).to_pylist()
            for place, row in zip(places.tolist(), rows, strict=True):
                result[place] = row
        return result

    def read_chunk(self, number: int) -> Any:
        """Returns the rows of one of the `chunks` as a `pyarrow.Table`, which is not kept.

        Raises:
          UsageError: It is damaged.
        """
        with self._lock:
            return self._read_group(int(np.flatnonzero(np.diff(self._ends))[number]))

    def _group(self, group: int) -> Any:
        """Returns a row group, as a table."""
        with self._lock:
            if group not in self._recent_groups:
                self._recent_groups[group] = self._read_group(group)
                if len(self._recent_groups) > _GROUPS_IN_MEMORY:
                    self._recent_groups.popitem(last=False)
            self._recent_groups.move_to_end(group)
            return self._recent_groups[group]

    def _read_group(self, group: int) -> Any:
        try:
            with as_bad_file():
                return self._open().read_row_group(group, columns=list(self._columns), use_threads=False)
        except BadFile as error:
            first, last = int(self._ends[group]), int(self._ends[group + 1]) - 1
            raise UsageError(
                f"is damaged in row group {group}: {error}",
                key=self.key,
                origin=f"{self._path}, rows {first} to {last}",
                remedy="write the file again",
            ) from None

    def _open(self) -> Any:
        if self._file is None:
            self._file = open_parquet(self._path)
        return self._file

    def _reset(self) -> None:
        """Forgets what is open: a copy in another process opens the file itself."""
        self._file, self._recent_groups, self._lock = None, collections.OrderedDict(), threading.Lock()

    def __getstate__(self) -> dict[str, Any]:
        return {
            name: value for name, value in self.__dict__.items() if name not in ("_file", "_recent_groups", "_lock")
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()
