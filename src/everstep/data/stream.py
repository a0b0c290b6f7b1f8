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
from typing import Any, NamedTuple

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
    but not always the same one. Names such as `_read`, `_rest` and `_position` belong to this class.

    Args:
      repeat: Whether epoch follows epoch without end.
      batches_per_epoch: The length of an epoch, None if not known beforehand.
    """

    def __init__(self, *, repeat: bool, batches_per_epoch: int | None = None):
        self._repeat = repeat
        self._batches_per_epoch = batches_per_epoch
        self._position = Position(0, 0)
        self._bookmark: Any = None
        self._batches: Iterator[Any] | None = None
        self._ahead: _Ahead | None = None
        self._own_rows: OwnRows | None = None

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
        self._own_rows = rows
        if self.reads_rows:
            self._move(self._position, self._bookmark)
        elif self._ahead is not None:  # what is open stays open: some sources cannot be opened again
            self._ahead = self._ahead._replace(part=part_of(self._ahead.part.data, rows))

    @property
    def repeat(self) -> bool:
        """Whether epoch follows epoch without end."""
        return self._repeat

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
        return self._repeat or self.epoch_never_ends

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
        again._repeat = True
        again._move(self._position, self._bookmark)
        return again

    @property
    def is_counting_first_epoch(self) -> bool:
        """Whether the first pass is read to learn how many batches it has; see `CountedStream`."""
        return False

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of batches in an epoch, None if it is not known beforehand."""
        return self._batches_per_epoch

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
        ahead = self._read_ahead()
        self._position, self._bookmark, self._ahead = ahead.position, ahead.bookmark, None
        return ahead.part.data

    def peek(self) -> Batch:
        """Returns the next batch without moving the position.

        Raises:
          StopIteration: There is none, as with `next`.
        """
        return self._read_ahead().part.data

    def block(self, n: int, seconds: float = BLOCK_SECONDS) -> Block | None:
        """Returns the next batches stacked: up to `n` of the same shapes, epoch after epoch, None at the end.

        A batch of another shape, such as the short last one of an epoch, is a block by itself. If reading is slow, a
        block has fewer batches: none is added after so many seconds of reading.
        """
        until = time.monotonic() + seconds
        try:
            first = self._read_ahead().part
            batches, states = [next(self)], [self.state()]
        except StopIteration:
            return None
        while len(batches) < n and time.monotonic() < until and self._continues(first):
            batches.append(next(self))
            states.append(self.state())
        return Block(nest.stack(batches), len(batches), states, first.batch_size)

    def state(self) -> StreamState:
        """Returns the position after the last returned batch: `{"epoch": e, "batch": b}`, and a bookmark if any."""
        mark = {} if self._bookmark is None else {BOOKMARK: self._bookmark}
        return {**self._position.state(), **mark}

    def restore(self, state: StreamState) -> None:
        """Moves to a position that `state` returned; the next batch is the one that followed then.

        Raises:
          UsageError: The state is not one of this stream, or the source cannot move there.
        """
        position = self._checked({key: value for key, value in state.items() if key != BOOKMARK})
        if position != self._position:  # even a one-shot source can keep its position
            self._move(position, state.get(BOOKMARK))

    def _move(self, position: Position, bookmark: Any = None) -> None:
        self._position, self._bookmark, self._batches, self._ahead = position, bookmark, None, None

    def _checked(self, state: StreamState) -> Position:
        numbers = [state.get("epoch"), state.get("batch")]
        if set(state) != {"epoch", "batch"} or not all(isinstance(n, int) and n >= 0 for n in numbers):
            raise UsageError("not a stream position; expected {'epoch': int, 'batch': int}", received=dict(state))
        position = Position(**state)
        if self._batches_per_epoch is not None and position.batch > self._batches_per_epoch:
            raise ended_early(position.batch)
        return position

    def _continues(self, like: Part) -> bool:
        """Whether there is a next batch and it has the shapes of `like`."""
        try:
            part = self._read_ahead().part
            return bool(part.batch_size == like.batch_size and _shapes(part.data) == _shapes(like.data))
        except StopIteration:
            return False

    def _read_ahead(self) -> "_Ahead":
        if self._ahead is None:
            position, part = self._read(*self._position)
            self._ahead = _Ahead(position, self.bookmark(), part)
        return self._ahead

    def _read(self, epoch: int, batch: int) -> tuple[Position, Part]:
        """Returns the batch that follows the position, in this epoch or the next, and the position after it."""
        for value in self._rest(epoch, batch):
            return Position(epoch, batch + 1), value
        if batch > 0:
            if not self._repeat:
                raise StopIteration
            self._batches = None
            for value in self._rest(epoch + 1, 0):
                return Position(epoch + 1, 1), value
            raise EmptyDataError(
                f"the data source had {batch} batches, but opened again for the next epoch it has no batch at all",
                remedy="return the batches from `open` for every epoch, or override `is_single_pass`",
            )
        raise EmptyDataError(
            "the data source has no batch at all: it is empty, or has fewer samples than one batch and drop_remainder "
            "is on"
        )

    def _rest(self, epoch: int, batch: int) -> Iterator[Part]:
        """Yields at most one batch from the open epoch; opens the epoch if none is open."""
        try:
            if self._batches is None:
                self._batches = iter(self._opened(epoch, batch))
            value = next(self._batches)
        except StopIteration:
            return
        except BaseException:
            self._batches = None  # a broken iterator would look like the end of the epoch
            raise
        # Not a `map` over the iterator: it would refer to this stream, which would keep files and buffers for the
        # garbage collector.
        yield self._as_part(value)

    def _opened(self, epoch: int, batch: int) -> Iterator[Batch] | Iterator[Part]:
        """Opens an epoch: all rows of its batches, or those that this process needs."""
        if self._own_rows is not None and self.reads_rows:
            return self.open_rows(epoch, batch, self._own_rows)
        if self._bookmark is None or (epoch, batch) != self._position:
            return self.open(epoch, batch)
        return self.open_at(epoch, batch, self._bookmark)

    def _as_part(self, value: Any) -> Part:
        if self._own_rows is None:
            return Part(value, None)
        return value if self.reads_rows else part_of(value, self._own_rows)


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
