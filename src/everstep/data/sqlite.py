"""Rows of a table in an SQLite database as batches, read by their numbers: the table is never in memory."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.data import randomness
from everstep.data.arguments import place
from everstep.data.arrays import check_batch_size
from everstep.data.files import find_files
from everstep.data.stream import EmptyDataError, OwnRows, Part, Stream
from everstep.errors import UsageError, nearest
from everstep.types import Batch

Names = str | Sequence[str]


class SqliteStream(Stream):
    """Batches of the rows of an SQLite table, which is only read.

        rows = SqliteStream("shop.db", "customers", features=["age", "income"], labels="bought", batch_size=256)

    A batch is `(x, y)`, or x alone without labels. A list of columns becomes one array with a place for each of them.
    The order of a shuffled epoch is that of `ArrayStream`, applied to the rows sorted by their `rowid`.

    Args:
      path: The database.
      table: The table; a view, or a table `WITHOUT ROWID`, has no row numbers.
      features: The column of the inputs, or a list of columns.
      labels: The column of the labels, or a list of columns.
      batch_size: Rows per batch.
      shuffle: Whether each epoch has its own order.
      seed: With the epoch, determines that order.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of an epoch is dropped.

    Raises:
      UsageError: The file is no database; the table or a column is missing; there are no rows, or not only numbers.
    """

    def __init__(
        self,
        path: str,
        table: str,
        features: Names,
        labels: Names | None = None,
        batch_size: int = 32,
        *,
        shuffle: bool = False,
        seed: int = 0,
        repeat: bool = False,
        drop_remainder: bool = False,
    ):
        files = find_files(place("path", path), "path")
        if len(files) > 1:
            raise UsageError(f"matches {len(files)} files", key="path", received=path, remedy="name one database")
        self._path, self._table = files[0], table
        parts = {"features": features, "labels": labels}
        self._parts = {key: part for key, part in parts.items() if part is not None}
        named = [(key, name) for key, part in self._parts.items() for name in _listed(part)]
        self._columns = [name for _, name in named]
        with self._connected() as database:
            known = [name for (name,) in database.execute("SELECT name FROM pragma_table_info(?)", [table])]
            if not known:
                tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
                raise UsageError(f"is not in {path}", key="table", received=table, remedy=nearest(table, tables))
            self._types = [self._type(database, key, name, known) for key, name in named]
            self._rows = self._row_numbers(database)
        check_batch_size(batch_size, len(self._rows), drop_remainder)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._full, rest = divmod(len(self._rows), batch_size)
        super().__init__(repeat=repeat, batches_per_epoch=self._full + (rest > 0 and not drop_remainder))

    @property
    def full_batches(self) -> int:
        """The number of full batches in an epoch; a short one may follow."""
        return self._full

    @property
    def files(self) -> Sequence[str]:
        """The database, and its log of changes if there is one; see `Stream.files`."""
        log = f"{self._path}-wal"
        return [self._path, log] if os.path.exists(log) and os.path.getsize(log) else [self._path]

    @property
    def fingerprint(self) -> Mapping[str, str | int]:
        """What is read from the files, and in which order; see `Stream.fingerprint`."""
        columns = {key: ", ".join(_listed(part)) for key, part in self._parts.items()}
        order = {"shuffle": int(self._shuffle), "seed": self._seed} if self._shuffle else {"shuffle": 0}
        return {"table": self._table, **columns, "batch_size": self._batch_size, **order}

    @property
    def reads_rows(self) -> bool:
        """True: rows are read by their numbers."""
        return True

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        return (part.data for part in self.open_rows(epoch, batch, slice))

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Yields these rows of the epoch's batches from that batch on; no other rows are read."""
        order = self._rows
        if self._shuffle:
            order = order[randomness.generator(self._seed, epoch).permutation(len(order))]
        with self._connected() as database:
            for number in range(batch, self.batches_per_epoch or 0):
                whole = order[number * self._batch_size : (number + 1) * self._batch_size]
                yield Part(self._batch_of(database, whole[rows(len(whole))].tolist()), len(whole))

    def _batch_of(self, database: sqlite3.Connection, numbers: list[int]) -> Batch:
        query = f"SELECT {', '.join(map(_quoted, self._columns))} FROM {_quoted(self._table)} WHERE rowid = ?"
        found = [database.execute(query, [number]).fetchone() for number in numbers]
        if None in found:
            raise self._error(f"the row {numbers[found.index(None)]} has been deleted while the table was read")
        columns = [np.array(values, kind) for values, kind in zip(zip(*found, strict=True), self._types, strict=True)]
        parts: list[np.ndarray] = []
        for part in self._parts.values():
            own, columns = columns[: len(_listed(part))], columns[len(_listed(part)) :]
            parts.append(own[0] if isinstance(part, str) else np.stack(own, axis=1))
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _type(self, database: sqlite3.Connection, key: str, name: str, known: Sequence[str]) -> type[np.generic]:
        """Returns the type of a column's values: SQLite declares none, so all of them are looked at."""
        if name not in known:  # SQLite would read the name as a text
            raise UsageError("is not a column of the table", key=key, received=name, remedy=nearest(name, known))
        query = f"SELECT DISTINCT typeof({_quoted(name)}) FROM {_quoted(self._table)}"
        kinds = {kind for (kind,) in database.execute(query)}
        if other := kinds - {"integer", "real"}:
            reason = "has missing values" if "null" in other else f"has values of the type {', '.join(sorted(other))}"
            raise UsageError(reason, key=key, received=name, remedy="convert them to numbers, or leave the column out")
        return np.float64 if "real" in kinds else np.int64

    def _row_numbers(self, database: sqlite3.Connection) -> np.ndarray:
        query = f"SELECT rowid FROM {_quoted(self._table)} ORDER BY rowid"
        try:
            rows = np.fromiter((number for (number,) in database.execute(query)), np.int64)
        except (sqlite3.OperationalError, TypeError):  # it has none, or in a view: they are NULL
            reason = "has no row numbers: it is a view, or a table WITHOUT ROWID"
            raise UsageError(reason, key="table", received=self._table, remedy="copy it into a table") from None
        if not len(rows):
            raise EmptyDataError("has no rows", key="table", received=self._table)
        return rows

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        """Opens the database to be read; its connection goes from the thread that peeks to the one that reads ahead."""
        address = f"{Path(self._path).absolute().as_uri()}?mode=ro"
        try:
            with contextlib.closing(sqlite3.connect(address, uri=True, check_same_thread=False)) as database:
                yield database
        except sqlite3.Error as error:
            raise self._error(f"cannot be read as an SQLite database: {error}") from None

    def _error(self, reason: str) -> UsageError:
        return UsageError(reason, key="path", received=self._path)


def _listed(names: Names) -> Sequence[str]:
    return [names] if isinstance(names, str) else names


def _quoted(name: Any) -> str:
    return '"' + str(name).replace('"', '""') + '"'
