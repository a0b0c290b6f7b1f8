"""Which pieces of documents each batch of each epoch has: packed rows, or rows of similar length."""

import abc
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from everstep.data import randomness
from everstep.data.text.packing import Packing


class BatchPlan(NamedTuple):
    """What a batch consists of.

    Attributes:
      length: The length of its rows.
      pieces: The pieces of all rows, row after row.
      sizes: How many pieces each row has.
    """

    length: int
    pieces: np.ndarray
    sizes: np.ndarray

    def rows(self, which: slice) -> "BatchPlan":
        """Returns some rows of the batch."""
        ends = np.concatenate([[0], np.cumsum(self.sizes)])
        first, last, _ = which.indices(len(self.sizes))
        return BatchPlan(self.length, self.pieces[ends[first] : ends[last]], self.sizes[which])


class Plan(abc.ABC):
    """The batches of every epoch; any of them follows from (seed, epoch) without what comes before it."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of batches in an epoch, the same for all."""

    @abc.abstractmethod
    def batch(self, epoch: int, number: int) -> BatchPlan:
        """Returns one batch of an epoch."""


class PackedPlan(Plan):
    """Rows that several pieces share.

    Args:
      lengths: The length of each piece, at most `capacity`.
      capacity: The length of a row.
      batch_size: Rows per batch.
      seed: With the epoch, determines the order; None for a fixed one.
      drop_remainder: Whether the last, short batch is dropped.
    """

    def __init__(
        self, lengths: np.ndarray, capacity: int, batch_size: int, seed: int | None, drop_remainder: bool
    ) -> None:
        self.packing = Packing(lengths, capacity, seed)
        self._capacity, self._batch_size = capacity, batch_size
        full, rest = divmod(len(self.packing), batch_size)
        self._length = full + (rest > 0 and not drop_remainder)

    def __len__(self) -> int:
        return self._length

    def batch(self, epoch: int, number: int) -> BatchPlan:
        """Returns one batch of an epoch."""
        start = number * self._batch_size
        rows = np.arange(start, min(start + self._batch_size, len(self.packing)))
        return BatchPlan(self._capacity, *self.packing.documents(epoch, rows))


class BucketPlan(Plan):
    """Rows of one piece each; the rows of a batch are padded to the same of a few lengths.

    Pieces left over when those of one length are cut into batches join the next longer ones, so only the last batch of
    the longest rows can be short.

    Args:
      lengths: The length of each piece.
      buckets: The lengths of rows, sorted; no piece is longer than the last.
      batch_size: Rows per batch.
      seed: With the epoch, determines the order; None for a fixed one.
      drop_remainder: Whether the short batch is dropped.
    """

    def __init__(
        self, lengths: np.ndarray, buckets: Sequence[int], batch_size: int, seed: int | None, drop_remainder: bool
    ) -> None:
        self._buckets, self._batch_size, self._seed = list(buckets), batch_size, seed
        self._bucket_of = np.searchsorted(self._buckets, lengths)
        counts = np.bincount(self._bucket_of, minlength=len(self._buckets))
        self._full: list[int] = []  # batches of each length
        left = 0
        for count in counts.tolist():
            full, left = divmod(count + left, batch_size)
            self._full.append(full)
        self._length = sum(self._full) + (left > 0 and not drop_remainder)
        self._order: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return self._length

    def batch(self, epoch: int, number: int) -> BatchPlan:
        """Returns one batch of an epoch."""
        pieces, batches = self._of_epoch(epoch)
        place = int(batches[number]) if number < len(batches) else len(batches)  # the short one comes last
        bucket = int(np.searchsorted(np.cumsum(self._full), place, side="right"))
        found = pieces[place * self._batch_size : (place + 1) * self._batch_size]
        return BatchPlan(self._buckets[min(bucket, len(self._buckets) - 1)], found, np.ones(len(found), np.int64))

    def _of_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns all pieces, those of the shortest batches first, and the order of the full batches."""
        if self._order is None or self._order[0] != epoch:
            count, full = len(self._bucket_of), sum(self._full)
            if self._seed is None:
                pieces, batches = np.arange(count), np.arange(full)
            else:
                generator = randomness.generator(self._seed, epoch)
                pieces, batches = generator.permutation(count), generator.permutation(full)
            # What a stable sort leaves over at the end of a bucket is what the next one begins with.
            by_bucket = pieces[np.argsort(self._bucket_of[pieces], kind="stable")]
            self._order = epoch, by_bucket, batches
        return self._order[1:]
