"""Samples in memory some of which are sparse or ragged: the order of arrays, gathered batch by batch."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from everstep.data import nest, order
from everstep.data.special import Rows, is_special
from everstep.data.stream import Stream
from everstep.errors import UsageError
from everstep.types import Batch


class RowsStream(Stream):
    """Batches cut from arrays, sparse matrices and ragged tensors, in the order in which `ArrayStream` cuts arrays.

    Args:
      arrays: Any nesting of them, with the samples along the first axis.
      batch_size: Samples per batch.
      shuffle: Whether each epoch has an order of its own.
      seed: With the epoch, decides that order.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of an epoch is left out.

    Raises:
      UsageError: They have different numbers of samples, or none.
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
        self.arrays = nest.map_leaves(rows_of, arrays)
        self._size = samples(self.arrays)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        full, rest = divmod(self._size, batch_size)
        self._length = full + (rest > 0 and not drop_remainder)
        super().__init__(repeat=repeat, batches_per_epoch=self._length)

    @property
    def parts(self) -> Any:
        """All of it as plain arrays, by which it is known again."""
        return nest.map_leaves(lambda leaf: leaf[np.arange(self._size)], self.arrays)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        random = order.generator(self._seed, epoch)
        rows = random.permutation(self._size) if self._shuffle else np.arange(self._size)
        for number in range(batch, self._length):
            taken = rows[number * self._batch_size : (number + 1) * self._batch_size]
            yield nest.map_leaves(lambda leaf, taken=taken: leaf[taken], self.arrays)


def rows_of(leaf: Any) -> Any:
    """Returns something whose rows can be taken."""
    if isinstance(leaf, Rows):
        return leaf
    return Rows(leaf) if is_special(leaf) else np.asarray(leaf)


def samples(arrays: Any) -> int:
    """Returns how many samples there are.

    Raises:
      UsageError: The parts do not agree on it, or there is none.
    """
    lengths = {path or "x": len(leaf) for path, leaf in nest.walk(arrays)}
    if len(set(lengths.values())) != 1 or not next(iter(lengths.values())):
        listed = ", ".join(f"{path}: {length}" for path, length in lengths.items())
        raise UsageError(f"the arrays have different numbers of samples, or none ({listed}); the first axis must agree")
    return next(iter(lengths.values()))
