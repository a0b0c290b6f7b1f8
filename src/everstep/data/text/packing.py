"""Which documents share a row: a best-fit packing of lengths, and an order of documents for each epoch.

The packing depends only on how many documents there are of each length, so it is computed once, in a time that does
not grow with the number of documents: the longest are placed first, each into the fullest row that has room for it. It
says that, for instance, 70 rows hold a document of 600 tokens and one of 424. Which documents these are is drawn for
each epoch, and so is the order of the rows. Any row of any epoch is therefore found from (seed, epoch) alone, and all
epochs have the same number of rows.
"""

import bisect
from collections import defaultdict

import numpy as np

from everstep.data import randomness

Pattern = tuple[int, ...]
"""The lengths of the documents in a row, the longest first."""


def pack(counts: np.ndarray, capacity: int) -> list[tuple[Pattern, int]]:
    """Returns the patterns of rows, and how many rows have each.

    Args:
      counts: How many documents there are of each length, from 0 on; none of length 0, none longer than `capacity`.
      capacity: The length of a row.
    """
    rooms: list[int] = []  # the free lengths of open rows, sorted
    rows: dict[int, list[tuple[Pattern, int]]] = defaultdict(list)  # open rows by free length

    def keep(pattern: Pattern, number: int, room: int) -> None:
        if not rows[room]:
            bisect.insort(rooms, room)
        rows[room].append((pattern, number))

    for length in np.flatnonzero(counts)[::-1].tolist():
        left = int(counts[length])
        while left:
            place = bisect.bisect_left(rooms, length)
            room = rooms[place] if place < len(rooms) else capacity
            pattern, number = rows[room].pop() if place < len(rooms) else ((), left)
            if place < len(rooms) and not rows[room]:
                rooms.pop(place)
            each = min(room // length, left)  # a row that takes one document is the fullest for the next one
            used = min(number, left // each)
            keep(pattern + (length,) * each, used, room - each * length)
            if pattern and number > used:
                keep(pattern, number - used, room)
            left -= each * used
    return sorted((row for found in rows.values() for row in found), reverse=True)


class Packing:
    """Rows of documents, for every epoch.

    Args:
      lengths: The length of each document, at least 1 and at most `capacity`.
      capacity: The length of a row.
      seed: With the epoch, determines which documents share a row, and the order of rows; None for a fixed order.
    """

    def __init__(self, lengths: np.ndarray, capacity: int, seed: int | None) -> None:
        self._lengths, self._seed = lengths, seed
        counts = np.bincount(lengths, minlength=capacity + 1)
        patterns = pack(counts, capacity)
        sizes = np.concatenate([np.full(number, len(pattern)) for pattern, number in patterns])
        slots = np.concatenate([np.tile(np.array(pattern), number) for pattern, number in patterns])
        self._starts = np.concatenate([[0], np.cumsum(sizes)])
        # Slots and documents of one length are matched in order: the n-th longest slot takes the n-th longest document.
        self._rank = np.empty(len(slots), np.int64)
        self._rank[np.argsort(-slots, kind="stable")] = np.arange(len(slots))
        self._order: tuple[int, np.ndarray, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self._starts) - 1

    def documents(self, epoch: int, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the documents of some rows of an epoch, row after row, and how many each row has."""
        by_length, row_order = self._of_epoch(epoch)
        places = row_order[rows]
        sizes = self._starts[places + 1] - self._starts[places]
        slots = np.concatenate([np.arange(self._starts[place], self._starts[place + 1]) for place in places])
        return by_length[self._rank[slots]], sizes

    def _of_epoch(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the documents, the longest first, those of one length shuffled; and the order of the rows."""
        if self._order is None or self._order[0] != epoch:
            if self._seed is None:
                documents, rows = np.arange(len(self._lengths)), np.arange(len(self))
            else:
                generator = randomness.generator(self._seed, epoch)
                documents, rows = generator.permutation(len(self._lengths)), generator.permutation(len(self))
            by_length = documents[np.argsort(-self._lengths[documents], kind="stable")]
            self._order = epoch, by_length, rows
        return self._order[1:]
