"""The interface of a file's rows, and several files as one."""

import abc
import bisect
import itertools
from collections.abc import Sequence
from typing import Any

from everstep.errors import NOTHING, UsageError, nearest

Row = dict[str, Any]
"""One row: its values by column."""


class Records(abc.ABC):
    """Rows by number, each with a place that errors can name.

        rows = open_records("data/*.parquet")
        row = rows[17]
        raise rows.error(17, "has no label")  # input_path: has no label (from data/a.parquet, row 17)

    Any thread may read, and a copy can be sent to another process.

    Args:
      key: The configuration key that names the files, for errors.
    """

    def __init__(self, key: str) -> None:
        self.key = key

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of rows."""

    @property
    @abc.abstractmethod
    def columns(self) -> tuple[str, ...]:
        """The names of the columns; of JSON lines those of the first row."""

    @abc.abstractmethod
    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the rows of these numbers, in this order.

        Raises:
          UsageError: A row cannot be read; names its file, and its line or number.
        """

    @abc.abstractmethod
    def where(self, number: int) -> str:
        """Returns the place of a row: its file, and its line (from 1) or its number in it (from 0)."""

    @property
    def files(self) -> Sequence[str]:
        """The files that are read, where known."""
        return ()

    @property
    def chunks(self) -> Sequence[range]:
        """Ranges of rows that are read together: one row of a Parquet row group costs as much as all of them."""
        return [range(len(self))]

    def __getitem__(self, number: int) -> Row:
        if not 0 <= number < len(self):
            raise IndexError(number)
        return self.read([number])[0]

    def value(self, number: int, row: Row, column: str) -> Any:
        """Returns the value of a column in a row that was read.

        Raises:
          UsageError: The row has no such column; names the nearest one.
        """
        if column not in row:
            raise self.error(number, f"has no column {column!r}", remedy=nearest(column, row))
        return row[column]

    def error(self, number: int, reason: str, *, received: Any = NOTHING, remedy: str = "") -> UsageError:
        """Returns an error about a row."""
        return UsageError(reason, key=self.key, received=received, remedy=remedy, origin=self.where(number))


def require_columns(wanted: Sequence[str] | None, known: Sequence[str], key: str, where: str) -> None:
    """Refuses columns that a file or dataset does not have.

    Raises:
      UsageError: A column is missing; names the nearest ones.
    """
    for name in wanted or ():
        if name not in known:
            raise UsageError(f"has no column {name!r}", key=key, received=where, remedy=nearest(name, known))


class JoinedRecords(Records):
    """The rows of several files, one after the other.

    Args:
      parts: The files; at least one.
    """

    def __init__(self, parts: Sequence[Records]) -> None:
        super().__init__(parts[0].key)
        self._parts = list(parts)
        self._ends = list(itertools.accumulate(len(part) for part in self._parts))

    def __len__(self) -> int:
        return self._ends[-1]

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the first file."""
        return self._parts[0].columns

    @property
    def files(self) -> Sequence[str]:
        """All files, in order."""
        return [file for part in self._parts for file in part.files]

    @property
    def chunks(self) -> Sequence[range]:
        """The ranges of all files."""
        starts = [0, *self._ends]
        return [
            range(start + chunk.start, start + chunk.stop)
            for start, part in zip(starts, self._parts, strict=False)
            for chunk in part.chunks
        ]

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the rows of these numbers; those that follow each other in one file are read at once."""
        rows: list[Row] = []
        for index, group in itertools.groupby(numbers, self._part_of):
            start = self._ends[index - 1] if index else 0
            rows += self._parts[index].read([number - start for number in group])
        return rows

    def where(self, number: int) -> str:
        """Returns the place of a row in its file."""
        index = self._part_of(number)
        return self._parts[index].where(number - (self._ends[index - 1] if index else 0))

    def _part_of(self, number: int) -> int:
        return bisect.bisect_right(self._ends, number)
