"""Arrays in memory: every epoch is a permutation that follows from (seed, epoch)."""

import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from everstep.data import nest, randomness
from everstep.data.sparse import Rows, is_sparse_or_ragged
from everstep.data.stream import BLOCK_SECONDS, Block, EmptyDataError, OwnRows, Part, Position, Stream
from everstep.errors import UsageError
from everstep.types import Batch, StreamState

ALIGNMENT = 64  # bytes; memory that begins at a multiple is used by CPU backends without a copy


class ArrayStream(Stream):
    """Batches cut from arrays that fit in memory.

        stream = ArrayStream((images, labels), 32, shuffle=True, seed=0, repeat=True, drop_remainder=True)

    The order of a shuffled epoch is
    `np.random.Generator(np.random.Philox(key=[seed, epoch])).permutation(num_samples)`; unshuffled, it is
    that of the arrays. Batches are copies: changing one changes nothing else.

    Args:
      arrays: Any nesting of arrays that have the samples along their first axis.
      batch_size: Samples per batch.
      shuffle: Whether each epoch has its own order.
      seed: With the epoch, determines that order.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of an epoch is dropped.

    Raises:
      UsageError: The arrays are empty, of different lengths, scalars or Python objects, or too few for a batch.
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        repeat: bool = False,
        drop_remainder: bool = False,
    ):
        self.arrays = nest.map_leaves(np.asarray, arrays)
        self._size = _common_length(self.arrays)
        check_batch_size(batch_size, self._size, drop_remainder)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        self._full, rest = divmod(self._size, batch_size)
        self._order: tuple[int, np.ndarray] | None = None
        self._length = self._full + (rest > 0 and not drop_remainder)
        self._rows: OwnRows | None = None
        super().__init__(repeat=repeat, batches_per_epoch=self._length)

    def limited(self, batches: int) -> "ArrayStream":
        """Returns the same stream with only the first batches of each epoch, gathered as fast as all of them."""
        new = copy.copy(self)
        new._length = batches
        new._full = min(self._full, batches)
        return new

    def row_numbers(self) -> "ArrayStream":
        """Returns a stream with the same order and positions, whose batches are the numbers of the rows, as int32.

        It is for arrays that live elsewhere, such as on the device: its blocks are small, and select the same samples.
        """
        new = copy.copy(self)
        new.arrays = np.arange(self._size, dtype=np.int32)
        return new

    @property
    def supports_fast_gather(self) -> bool:
        """True: a block is one selection of rows."""
        return True

    @property
    def num_samples(self) -> int:
        """The number of samples."""
        return self._size

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches in an epoch."""
        return self._length

    def keep_rows(self, rows: OwnRows) -> None:
        """From now on returns only these rows of each batch; see `Stream.keep_rows`."""
        self._rows = rows
        super().keep_rows(rows)

    @property
    def full_batches(self) -> int:
        """The number of full batches in an epoch; a short one may follow."""
        return self._full

    @property
    def reads_rows(self) -> bool:
        """True: samples are gathered by their numbers."""
        return True

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        for index in range(batch, self._length):
            yield nest.map_leaves(lambda leaf: leaf[0], self._gather([self._samples(epoch, index, 1)], 1))

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Yields these rows of the epoch's batches from that batch on."""
        for index in range(batch, self._length):
            samples = self._samples(epoch, index, 1)
            own = self._gather([samples[rows(len(samples))]], 1)
            yield Part(nest.map_leaves(lambda leaf: leaf[0], own), len(samples))

    def block(self, n: int, seconds: float = BLOCK_SECONDS) -> Block | None:
        """Returns up to `n` batches gathered at once, across epochs; see `Stream.block`."""
        samples: list[np.ndarray] = []
        states: list[StreamState] = []
        size = self._batch_size
        while len(states) < n and (start := self._next_start()) is not None:
            epoch, batch = start
            count = min(n - len(states), self._full - batch)
            if count < 1 and states:
                break  # the short batch is a block by itself
            count = max(1, count)
            found = self._samples(epoch, batch, count)
            size = len(found) // count
            samples.append(found if self._rows is None else found.reshape(count, size)[:, self._rows(size)].ravel())
            states += [Position(epoch, batch + i + 1).state() for i in range(count)]
            self.restore(states[-1])
            if batch + count > self._full:
                break
        if not states:
            return None
        return Block(self._gather(samples, len(states)), len(states), states, None if self._rows is None else size)

    def _next_start(self) -> Position | None:
        """Returns the position of the next batch; None at the end."""
        position = Position.of(self.state())
        if position.batch < self._length:
            return position
        return Position(position.epoch + 1, 0) if self.repeat else None

    def _samples(self, epoch: int, batch: int, count: int) -> np.ndarray:
        """Returns the indices of the samples in `count` batches of an epoch; for the short batch `count` is 1."""
        start = batch * self._batch_size
        stop = min(start + count * self._batch_size, self._size)
        return self._permutation(epoch)[start:stop] if self._shuffle else np.arange(start, stop)

    def _gather(self, samples: list[np.ndarray], count: int) -> Batch:
        """Returns `count` batches of those samples on a new leading axis, in fresh memory."""
        indices = samples[0] if len(samples) == 1 else np.concatenate(samples)
        size = len(indices) // count
        return nest.map_leaves(lambda leaf: _take(leaf, indices).reshape(count, size, *leaf.shape[1:]), self.arrays)

    def _permutation(self, epoch: int) -> np.ndarray:
        if self._order is None or self._order[0] != epoch:
            self._order = epoch, randomness.generator(self._seed, epoch).permutation(self._size)
        return self._order[1]


def _take(leaf: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """Returns those rows in aligned memory, which a CPU backend uses without a copy."""
    if leaf.dtype == object:  # text: Python's strings have no layout in the array
        return np.take(leaf, indices, axis=0)
    rows = aligned((len(indices), *leaf.shape[1:]), leaf.dtype)
    return np.take(leaf, indices, axis=0, out=rows, mode="clip")  # the indices are valid; "raise" would buffer


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Returns a new array, not filled, in memory that a CPU backend uses without a copy."""
    dtype = np.dtype(dtype)
    size = dtype.itemsize * math.prod(shape)
    buffer = np.empty(size + ALIGNMENT, np.uint8)
    begin = -buffer.ctypes.data % ALIGNMENT
    return buffer[begin : begin + size].view(dtype).reshape(shape)


def _common_length(arrays: Any) -> int:
    leaves = list(nest.walk(arrays))
    for path, leaf in leaves:
        if leaf.ndim == 0:
            raise UsageError("has no axis, expected samples along the first one", key=path, received=leaf.item())
        if leaf.dtype == object and not is_text(leaf):
            raise UsageError(
                "holds Python objects (dtype object), often rows of different lengths",
                key=path,
                remedy="pad them, or convert them with astype to numbers or strings",
            )
    lengths = {path or "the array": len(leaf) for path, leaf in leaves}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{path}: {length}" for path, length in lengths.items())
        raise UsageError(f"the arrays have different numbers of samples ({listed})", remedy="the first axis must agree")
    if not lengths or not next(iter(lengths.values())):
        raise EmptyDataError("the arrays are empty", remedy="pass at least one sample")
    return next(iter(lengths.values()))


def is_text(array: np.ndarray) -> bool:
    """Whether an array holds only strings or bytes."""
    if array.dtype != object:
        return array.dtype.kind in "USO"
    return array.size > 0 and all(isinstance(value, str | bytes) for value in array.reshape(-1))


def check_batch_size(batch_size: int, size: int, drop_remainder: bool) -> None:
    """Refuses a batch size for which there is no batch.

    Raises:
      UsageError: It is not positive, or larger than the data while the remainder is dropped.
    """
    if batch_size < 1:
        raise UsageError("must be at least 1", key="global_batch_size", received=batch_size)
    if drop_remainder and batch_size > size:
        raise UsageError(
            f"the dataset has only {size} samples, and drop_remainder drops the incomplete batch",
            key="global_batch_size",
            received=batch_size,
            remedy="lower global_batch_size or set drop_remainder=false",
        )


class RowsStream(Stream):
    """Batches of arrays, sparse matrices and ragged tensors, in the order of `ArrayStream`, gathered batch by batch.

    The arguments are those of `ArrayStream`.

    Raises:
      UsageError: The arrays have different numbers of samples, or none.
    """

    def __init__(
        self,
        arrays: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        repeat: bool = False,
        drop_remainder: bool = False,
    ):
        self.arrays = nest.map_leaves(as_rows, arrays)
        self._size = count_samples(self.arrays)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        full, rest = divmod(self._size, batch_size)
        self._length = full + (rest > 0 and not drop_remainder)
        super().__init__(repeat=repeat, batches_per_epoch=self._length)

    @property
    def parts(self) -> Any:
        """All samples as plain arrays, for the fingerprint of the data."""
        return nest.map_leaves(lambda leaf: leaf[np.arange(self._size)], self.arrays)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        random = randomness.generator(self._seed, epoch)
        rows = random.permutation(self._size) if self._shuffle else np.arange(self._size)
        for number in range(batch, self._length):
            taken = rows[number * self._batch_size : (number + 1) * self._batch_size]
            yield nest.map_leaves(lambda leaf, taken=taken: leaf[taken], self.arrays)


def as_rows(leaf: Any) -> Any:
    """Returns an array, or the rows of a sparse or ragged tensor."""
    if isinstance(leaf, Rows):
        return leaf
    return Rows(leaf) if is_sparse_or_ragged(leaf) else np.asarray(leaf)


def count_samples(arrays: Any) -> int:
    """Returns how many samples there are.

    Raises:
      UsageError: The arrays have different numbers of samples, or none.
    """
    lengths = {path or "x": len(leaf) for path, leaf in nest.walk(arrays)}
    if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
        listed = ", ".join(f"{path}: {length}" for path, length in lengths.items())
        raise UsageError(
            f"the arrays have different numbers of samples, or none ({listed})", remedy="the first axis must agree"
        )
    return next(iter(lengths.values()))
