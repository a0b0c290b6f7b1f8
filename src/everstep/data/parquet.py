"""Columns of numbers in Parquet files as batches: read a row group at a time, and no row becomes a Python object."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from everstep.data import randomness
from everstep.data.arrays import check_batch_size
from everstep.data.arrow_columns import column_as_array
from everstep.data.files import find_files
from everstep.data.formats.tables import as_bad_file, open_parquet
from everstep.data.records.parquet import Parquet
from everstep.data.stream import OwnRows, Part, Stream
from everstep.errors import UsageError, nearest
from everstep.types import Batch

KEY = "path"
ID = "id"


class ParquetSource:
    """Rows of Parquet files, which `fit` and a task read like arrays, without having them in memory.

        source = ParquetSource("rows/*.parquet", x=["age", "income"], y="bought")
        everstep.fit(model, source, batch_size=256)

    A batch is `(x, y)`, or x alone without `y`, or a dict of all columns if neither is given. A list of columns becomes
    one array with a place for each of them. Columns have numbers, or lists of numbers of one length. A column `id` that
    is in neither of them names the rows. A column of labels may have texts, the names of classes, which become numbers.

    Args:
      path: A path, a glob, several of them with commas between, or a list of those.
      x: The column of the inputs, or a list of columns.
      y: The column of the labels, or a list of columns.
      classes: The names of the classes, where labels are texts; None for those that occur, sorted. Pass those of the
        training data to other data: `ParquetSource("test.parquet", x=…, y=…, classes=train.classes)`.

    Attributes:
      classes: The names of the classes; empty where labels are numbers.

    Attributes:
      path: As given.
      x: As given.
      y: As given.

    Raises:
      UsageError: A file or a column is missing, a file is empty or damaged, or a column has no numbers.
    """

    def __init__(
        self,
        path: str | list[str],
        x: str | list[str] | None = None,
        y: str | list[str] | None = None,
        classes: Sequence[str] | None = None,
    ):
        if x is None and y is not None:
            raise UsageError("is None, but y is given", key="x", remedy="name the column, or columns, of the inputs")
        self.path, self.x, self.y = path, x, y
        named = [name for part in (x, y) if part for name in ([part] if isinstance(part, str) else part)]
        columns = list(dict.fromkeys(named)) or None
        self.files: Sequence[str] = find_files(path, KEY)
        self._parts = [Parquet(file, KEY, columns) for file in self.files]
        self._groups = [(part, number) for part in self._parts for number in range(len(part.chunks))]
        self.group_sizes = [len(chunk) for part in self._parts for chunk in part.chunks]
        if not self.group_sizes:
            raise UsageError("has no rows", key=KEY, received=path)
        texts = self._texts_of(y) if isinstance(y, str) else set()
        self.classes: list[str] = sorted(texts) if classes is None or not texts else list(classes)
        if unknown := sorted(texts - set(self.classes)):
            raise UsageError(
                f"the label is none of the {len(self.classes)} classes",
                key=KEY,
                received=unknown[0],
                remedy=nearest(unknown[0], self.classes),
            )

    def __len__(self) -> int:
        return sum(self.group_sizes)

    def ids(self) -> list[str] | None:
        """Returns the names of all rows; None if no column has them."""
        names = {name for part in (self.x, self.y) if part for name in ([part] if isinstance(part, str) else part)}
        if not names or ID in names:
            return None
        columns = []
        for file in self.files:
            with open_parquet(file) as opened, as_bad_file():
                if ID not in opened.schema_arrow.names:
                    return None
                columns.append(opened.read([ID]).column(ID))
        return [str(value) for column in columns for value in column.to_pylist()]

    def _texts_of(self, column: str) -> set[str]:
        """Returns the texts in a column; empty if it has something else, or a missing value."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found: set[str] = set()
        for file in self.files:
            with open_parquet(file) as opened, as_bad_file():
                kind = opened.schema_arrow.field(column).type
                kind = kind.value_type if pa.types.is_dictionary(kind) else kind
                if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                    return set()
                texts = [pc.unique(group).to_pylist() for group in _groups_of(opened, column)]
            found = found.union(*texts)
        return set() if None in found else found

    def group(self, number: int) -> dict[str, np.ndarray]:
        """Returns the columns of a row group, of all files together.

        Raises:
          UsageError: It is damaged, or a column has something else than numbers.
        """
        part, index = self._groups[number]
        table = part.read_chunk(index)
        return {name: self._array(part, name, table.column(name)) for name in part.columns}

    def batch_of(self, columns: dict[str, np.ndarray]) -> Batch:
        """Returns the rows of some columns in the nesting of a batch."""
        if self.x is None:
            return columns
        inputs = _joined(columns, self.x)
        return inputs if self.y is None else (inputs, _joined(columns, self.y))

    def _array(self, part: Parquet, name: str, column: Any) -> np.ndarray:
        if self.classes and name == self.y:
            return _numbers(column, self.classes)
        array = column_as_array(column)
        if array is None:
            reason = f"the column {name!r} has missing values" if column.null_count else f"the column {name!r} is not"
            reason += "" if column.null_count else f" numbers, or lists of one length: it has the type {column.type}"
            remedy = "name the columns to read as x and y" if self.x is None else "fill or convert it, or leave it out"
            raise UsageError(reason, key=KEY, received=part.files[0], remedy=remedy)
        return array


def _groups_of(file: Any, column: str) -> Iterator[Any]:
    return (file.read_row_group(number, [column]).column(column) for number in range(file.metadata.num_row_groups))


def _numbers(texts: Any, classes: Sequence[str]) -> np.ndarray:
    """Returns texts as the numbers of their classes."""
    import pyarrow as pa
    import pyarrow.compute as pc

    numbers = pc.index_in(texts.cast(pa.string()), value_set=pa.array(classes, pa.string()))
    return np.asarray(numbers.to_numpy(), np.int32)


def _joined(columns: dict[str, np.ndarray], names: str | list[str]) -> np.ndarray:
    if isinstance(names, str):
        return columns[names]
    return np.stack([columns[name] for name in names], axis=1)


class ParquetStream(Stream):
    """Batches of the rows of Parquet files.

        stream = ParquetStream(ParquetSource("rows.parquet"), 256, shuffle=True, seed=0, repeat=True)

    Shuffled row groups follow each other, and within every two of them the rows are shuffled: so two row groups are in
    memory at a time. The order follows from (seed, epoch) and the sizes of the row groups, so any position is found
    without reading what comes before it.

    Args:
      source: The rows.
      batch_size: Rows per batch.
      shuffle: Whether each epoch has its own order.
      seed: With the epoch, determines that order.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of an epoch is dropped.

    Raises:
      UsageError: There are too few rows for a batch.
    """

    def __init__(
        self,
        source: ParquetSource,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        repeat: bool = False,
        drop_remainder: bool = False,
    ):
        self._source, self._size = source, len(source)
        check_batch_size(batch_size, self._size, drop_remainder)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._full, rest = divmod(self._size, batch_size)
        super().__init__(repeat=repeat, batches_per_epoch=self._full + (rest > 0 and not drop_remainder))

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes, where the labels are texts."""
        return self._source.classes

    def sample_ids(self) -> list[str] | None:
        """Returns the column `id`; None if there is none, or the rows are shuffled."""
        return None if self._shuffle else self._source.ids()

    @property
    def full_batches(self) -> int:
        """The number of full batches in an epoch; a short one may follow."""
        return self._full

    @property
    def files(self) -> Sequence[str]:
        """The files; see `Stream.files`."""
        return self._source.files

    @property
    def reads_rows(self) -> bool:
        """True: other rows of a row group are read, but not gathered."""
        return True

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        return (part.data for part in self.open_rows(epoch, batch, slice))

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Yields these rows of the epoch's batches from that batch on."""
        pairs = self._pairs(epoch)
        sizes = self._source.group_sizes
        ends = list(itertools.accumulate(sum(sizes[group] for group in pair) for pair in pairs))
        in_memory: _GroupsInMemory | None = None  # the pair that was read last
        for number in range(batch, self.batches_per_epoch or 0):
            start = number * self._batch_size
            size = min(self._batch_size, self._size - start)
            own = range(size)[rows(size)]
            parts = []
            first, last = start + own.start, start + own.stop
            for pair in range(int(np.searchsorted(ends, first, side="right")), len(pairs)):
                begin = ends[pair - 1] if pair else 0
                if begin >= last:
                    break
                if in_memory is None or in_memory.pair != pair:
                    in_memory = None  # before the next ones are read
                    in_memory = _GroupsInMemory(
                        pair, self._read_groups(pairs[pair]), self._order(epoch, pair, ends[pair] - begin)
                    )
                which = in_memory.order[max(first - begin, 0) : last - begin]
                parts.append({name: column[which] for name, column in in_memory.columns.items()})
            columns = parts[0] if len(parts) == 1 else _one_after_the_other(parts)
            yield Part(self._source.batch_of(columns), size)

    def _pairs(self, epoch: int) -> list[list[int]]:
        """Returns the row groups that are read together, in their order."""
        count = len(self._source.group_sizes)
        if not self._shuffle:
            return [[number] for number in range(count)]
        groups = randomness.generator(self._seed, epoch).permutation(count).tolist()
        return [groups[start : start + 2] for start in range(0, count, 2)]

    def _order(self, epoch: int, pair: int, size: int) -> np.ndarray:
        """Returns the order of the rows of a pair; of each by itself, so that no order of all rows is in memory."""
        if not self._shuffle:
            return np.arange(size)
        return randomness.generator(randomness.seed_of(self._seed, pair), epoch).permutation(size)

    def _read_groups(self, groups: Sequence[int]) -> dict[str, np.ndarray]:
        read = [self._source.group(number) for number in groups]
        return read[0] if len(read) == 1 else _one_after_the_other(read)


class _GroupsInMemory(NamedTuple):
    """Row groups in memory: their columns, and the order of their rows."""

    pair: int
    columns: dict[str, np.ndarray]
    order: np.ndarray


def _one_after_the_other(parts: Sequence[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
