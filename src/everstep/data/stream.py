"""Batches with a position: the interface of every data source.

The base class does the counting, epochs, the end of the data, peeking and stacking. A source implements only `open`,
which returns the batches of one epoch from a given batch on. A source that would have to read everything before its
position also keeps a bookmark beside the two numbers.

Where several processes train one run, each of them reads the same stream, with the same positions, and needs some rows
of every batch: `keep_rows`. A source with random access to its samples implements `open_rows`, and reads no others.
"""

import abc
import copy
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from everstep.data import nest
from everstep.data.sparse import RaggedArray, SparseArray
from everstep.errors import UsageError
from everstep.types import Batch, StreamState

OwnRows = Callable[[int], slice]
"""Returns which rows of a batch of so many samples a process needs; at least one."""


class EmptyDataError(UsageError):
    """A data source has no batch at all."""


class Position(NamedTuple):
    """The batches returned so far: `epoch` whole epochs and `batch` batches of the next."""

    epoch: int
    batch: int

    @classmethod
    def of(cls, state: StreamState) -> "Position":
        """Returns the position that `state` has returned.

        Raises:
          UsageError: It is no position.
        """
        numbers = [state.get("epoch"), state.get("batch")]
        if set(state) != {"epoch", "batch"} or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise UsageError("not a stream position; expected {'epoch': int, 'batch': int}", received=dict(state))
        return cls(**state)

    def state(self) -> StreamState:
        """Returns the position as the plain values a checkpoint stores."""
        return {"epoch": self.epoch, "batch": self.batch}


class Part(NamedTuple):
    """The rows of a batch that this process needs.

    Attributes:
      data: The rows.
      batch_size: How many samples the whole batch has; None if `data` is the whole batch.
    """

    data: Batch
    batch_size: int | None


def part_of(batch: Batch, rows: OwnRows) -> Part:
    """Returns some rows of a whole batch.

    A batch of arrays of different lengths, as of several tasks, or of sparse or ragged ones stays whole: only an engine
    knows how to divide it.
    """
    sizes = {np.shape(leaf)[:1] for leaf in nest.flatten(batch)}
    if len(sizes) != 1 or () in sizes or _in_parts(batch):
        return Part(batch, None)
    ((size,),) = sizes
    return Part(nest.map_leaves(lambda leaf: leaf[rows(size)], batch), size)


def _in_parts(batch: Batch) -> bool:
    """Whether a batch has a sparse or ragged tensor, which consists of several arrays."""
    if isinstance(batch, SparseArray | RaggedArray):
        return True
    parts = batch.values() if isinstance(batch, dict) else batch if isinstance(batch, list | tuple) else ()
    return any(map(_in_parts, parts))


@dataclasses.dataclass(frozen=True)
class Block:
    """Several batches of one shape, stacked: what an engine runs in one call.

    Attributes:
      data: The batches' nesting; each leaf has the batches along a new first axis.
      count: How many batches there are.
      states: The stream's position after each of them.
      batch_size: How many samples each whole batch has, if `data` has only the rows of this process; else None.
    """

    data: Any
    count: int
    states: list[StreamState]
    batch_size: int | None = None

    @property
    def samples(self) -> int:
        """The number of samples in all whole batches together."""
        if self.batch_size is not None:
            return self.count * self.batch_size
        shape = np.shape(nest.flatten(self.data)[0])
        return int(shape[0] * shape[1]) if len(shape) > 1 else self.count

    def split(self, n: int) -> tuple["Block", "Block"]:
        """Returns the first `n` batches and the rest, both views of this block's memory.

        Raises:
          ValueError: One of the two parts would be empty.
        """
        if not 0 < n < self.count:
            raise ValueError(f"a block of {self.count} batches cannot be split after {n}")
        head, tail = slice(None, n), slice(n, None)
        return self._part(head, n), self._part(tail, self.count - n)

    def _part(self, which: slice, count: int) -> "Block":
        part = nest.map_leaves(lambda leaf: leaf[which], self.data)
        return Block(part, count, self.states[which], self.batch_size)


BOOKMARK = "bookmark"
"""The key of the state under which a source saves its own bookmark."""

BLOCK_SECONDS = 1.0  # a block takes no further batch after so much reading


class Stream(abc.ABC):
    """Batches with a position.

        for batch in stream: ...              # epoch after epoch if `repeat`
        state = stream.state()                # {"epoch": 3, "batch": 17}
        stream.restore(state)                 # the next batch is again the one that followed

    A subclass implements `open` and passes `repeat`, and `batches_per_epoch` if it knows it. The state counts the
    batches that were returned; a batch that was only peeked at does not count. One thread at a time reads a stream,
    but not always the same one.

    Private names of this class have two underscores, which Python keeps apart for each class: a subclass may use any
    name with one.

    Args:
      repeat: Whether epoch follows epoch without end.
      batches_per_epoch: The length of an epoch, None if not known beforehand.
    """

    def __init__(self, *, repeat: bool, batches_per_epoch: int | None = None):
        self.__repeat = repeat
        self.__batches_per_epoch = batches_per_epoch
        self.__position = Position(0, 0)
        self.__bookmark: Any = None
        self.__batches: Iterator[Any] | None = None
        self.__ahead: _Ahead | None = None
        self.__own_rows: OwnRows | None = None

    @abc.abstractmethod
    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the batches of one epoch from that batch on; called by the base class only.

        `batch` may equal the epoch's length: the iterator is then empty.
        """

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the same batches as `open`, found by a bookmark that was saved at this position.

        A source that has bookmarks overrides it; for positions without one, such as those of older runs, `open` is
        called.
        """
        return self.open(epoch, batch)

    def bookmark(self) -> Any:
        """Returns plain JSON values from which `open_at` finds the position after the batch that was read last.

        It is saved beside the position. None, as here, if the position is enough.
        """
        return None

    @property
    def reads_rows(self) -> bool:
        """Whether `open_rows` spares the work for other rows: samples are read, or at least decoded, one by one."""
        return False

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Returns the same batches as `open`, of each only the rows that this process needs; called if `reads_rows`."""
        raise NotImplementedError

    def keep_rows(self, rows: OwnRows) -> None:
        """From now on returns only these rows of each batch; positions, order and bookmarks stay those of all rows.

        Where several processes train, the engine calls it. Without random access, whole batches are read.
        """
        self.__own_rows = rows
        if self.reads_rows:
            self.__move(self.__position, self.__bookmark)
        elif self.__ahead is not None:  # what is open stays open: some sources cannot be opened again
            self.__ahead = self.__ahead._replace(part=part_of(self.__ahead.part.data, rows))

    @property
    def repeat(self) -> bool:
        """Whether epoch follows epoch without end."""
        return self.__repeat

    @property
    def supports_fast_gather(self) -> bool:
        """Whether `block` gathers several batches in about the time of one. Overridden by sources in memory."""
        return False

    @property
    def epoch_never_ends(self) -> bool:
        """Whether one epoch has no end: the source itself repeats. Overridden by sources that may do so."""
        return False

    @property
    def never_ends(self) -> bool:
        """Whether reading never comes to an end: epoch follows epoch, or one of them has no end."""
        return self.repeat or self.epoch_never_ends

    @property
    def is_single_pass(self) -> bool:
        """Whether it can be read only once, as a one-shot iterator can. Others are opened again for the next epoch."""
        return False

    def repeated(self) -> "Stream":
        """Returns the same stream at the same position, where epoch follows epoch without end.

        Training calls it, unless `DataConfig.repeat` is false. What can be read only once, or has no end, is returned
        as it is.
        """
        if self.never_ends or self.is_single_pass:
            return self
        again = copy.copy(self)
        again.__repeat = True
        return again

    def __copy__(self) -> Self:
        """Returns a stream at the same position, which opens the source by itself."""
        new = object.__new__(type(self))
        vars(new).update(vars(self))
        new.__move(self.__position, self.__bookmark)
        return new

    @property
    def is_counting_first_epoch(self) -> bool:
        """Whether the first pass is read to learn how many batches it has; see `CountedStream`."""
        return False

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of batches in an epoch, None if it is not known beforehand."""
        return self.__batches_per_epoch

    @property
    def full_batches(self) -> int | None:
        """The number of batches of one shape that an epoch begins with, None if it is not known beforehand."""
        return None

    @property
    def sources(self) -> Mapping[str, "Stream"]:
        """The streams that this one is built from, by name; resuming checks that their data is the same."""
        return {}

    @property
    def limits_each_source(self) -> bool:
        """Whether it has parts to which `DataConfig.limit_batches` is applied one by one."""
        return False

    @property
    def files(self) -> Sequence[str]:
        """The files that this stream reads, where known: resuming checks that their content is the same."""
        return ()

    @property
    def fingerprint(self) -> Mapping[str, str | int]:
        """What else identifies the data, by name: resuming checks that it is the same."""
        return {}

    @property
    def classes(self) -> Sequence[str]:
        """The names of the classes, where the data has them; a label is a position in it.

        They become part of the run's record, and so of its predictions and reports.
        """
        return ()

    def sample_ids(self) -> Sequence[str] | None:
        """Returns the names of an epoch's samples in the order in which they are read, such as their files.

        None, as here, where they have none, or where they are shuffled. An evaluation calls it, and names samples by
        them instead of their numbers.
        """
        return None

    @property
    def notes(self) -> Sequence[str]:
        """What the log should say about the data, such as how many documents were skipped; each a line."""
        return ()

    @property
    def why_not_exact(self) -> str:
        """Why a resumed run may not get exactly the same batches, and what to do; empty if it does.

        As far as the stream can know: it cannot see what a user's Python code draws from.
        """
        return ""

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        ahead = self.__read_ahead()
        self.__position, self.__bookmark, self.__ahead = ahead.position, ahead.bookmark, None
        return ahead.part.data

    def peek(self) -> Batch:
        """Returns the next batch without moving the position.

        Raises:
          StopIteration: There is none, as with `next`.
        """
        return self.__read_ahead().part.data

    def block(self, n: int, seconds: float = BLOCK_SECONDS) -> Block | None:
        """Returns the next batches stacked: up to `n` of the same shapes, epoch after epoch, None at the end.

        A batch of another shape, such as the short last one of an epoch, is a block by itself. If reading is slow, a
        block has fewer batches: none is added after so many seconds of reading.
        """
        until = time.monotonic() + seconds
        try:
            first = self.__read_ahead().part
            batches, states = [next(self)], [self.state()]
        except StopIteration:
            return None
        while len(batches) < n and time.monotonic() < until and self.__continues(first):
            batches.append(next(self))
            states.append(self.state())
        return Block(nest.stack(batches), len(batches), states, first.batch_size)

    def state(self) -> StreamState:
        """Returns the position after the last returned batch: `{"epoch": e, "batch": b}`, and a bookmark if any."""
        mark = {} if self.__bookmark is None else {BOOKMARK: self.__bookmark}
        return {**self.__position.state(), **mark}

    def restore(self, state: StreamState) -> None:
        """Moves to a position that `state` returned; the next batch is the one that followed then.

        Raises:
          UsageError: The state is not one of this stream, or the source cannot move there.
        """
        position = Position.of({key: value for key, value in state.items() if key != BOOKMARK})
        if self.batches_per_epoch is not None and position.batch > self.batches_per_epoch:
            raise ended_early(position.batch)
        if position != self.__position:  # even a one-shot source can keep its position
            self.__move(position, state.get(BOOKMARK))

    def __move(self, position: Position, bookmark: Any = None) -> None:
        self.__position, self.__bookmark, self.__batches, self.__ahead = position, bookmark, None, None

    def __continues(self, like: Part) -> bool:
        """Whether there is a next batch and it has the shapes of `like`."""
        try:
            part = self.__read_ahead().part
            return bool(part.batch_size == like.batch_size and _shapes(part.data) == _shapes(like.data))
        except StopIteration:
            return False

    def __read_ahead(self) -> "_Ahead":
        if self.__ahead is None:
            position, part = self.__read(*self.__position)
            self.__ahead = _Ahead(position, self.bookmark(), part)
        return self.__ahead

    def __read(self, epoch: int, batch: int) -> tuple[Position, Part]:
        """Returns the batch that follows the position, in this epoch or the next, and the position after it."""
        for value in self.__rest(epoch, batch):
            return Position(epoch, batch + 1), value
        if batch > 0:
            if not self.repeat:
                raise StopIteration
            self.__batches = None
            for value in self.__rest(epoch + 1, 0):
                return Position(epoch + 1, 1), value
            raise EmptyDataError(
                f"the data source had {batch} batches, but opened again for the next epoch it has no batch at all",
                remedy="return the batches from `open` for every epoch, or override `is_single_pass`",
            )
        raise EmptyDataError(
            "the data source has no batch at all: it is empty, or has fewer samples than one batch and drop_remainder "
            "is on"
        )

    def __rest(self, epoch: int, batch: int) -> Iterator[Part]:
        """Yields at most one batch from the open epoch; opens the epoch if none is open."""
        try:
            if self.__batches is None:
                self.__batches = iter(self.__opened(epoch, batch))
            value = next(self.__batches)
        except StopIteration:
            return
        except BaseException:
            self.__batches = None  # a broken iterator would look like the end of the epoch
            raise
        # Not a `map` over the iterator: it would refer to this stream, which would keep files and buffers for the
        # garbage collector.
        yield self.__as_part(value)

    def __opened(self, epoch: int, batch: int) -> Iterator[Batch] | Iterator[Part]:
        """Opens an epoch: all rows of its batches, or those that this process needs."""
        if self.__own_rows is not None and self.reads_rows:
            return self.open_rows(epoch, batch, self.__own_rows)
        if self.__bookmark is None or (epoch, batch) != self.__position:
            return self.open(epoch, batch)
        return self.open_at(epoch, batch, self.__bookmark)

    def __as_part(self, value: Any) -> Part:
        if self.__own_rows is None:
            return Part(value, None)
        return value if self.reads_rows else part_of(value, self.__own_rows)


class _Ahead(NamedTuple):
    """A batch that was read ahead, and the position after it."""

    position: Position
    bookmark: Any
    part: Part


def skip(batches: Iterator[Batch], count: int, position: int) -> None:
    """Reads and drops `count` batches, up to `position` in the epoch.

    Raises:
      UsageError: There are fewer batches, so the data has changed.
    """
    end = object()
    for _ in range(count):
        if next(batches, end) is end:
            raise ended_early(position)


def ended_early(batch: int) -> UsageError:
    """Returns the error for a position after the end of an epoch."""
    return UsageError(
        f"the saved position is after batch {batch} of an epoch, but the data ends before it: the data or the batch "
        "size has changed",
        remedy="use the data the run was started with, or start a new run",
    )


def _shapes(batch: Batch) -> Any:
    return nest.map_leaves(lambda leaf: (leaf.shape, leaf.dtype), batch)
