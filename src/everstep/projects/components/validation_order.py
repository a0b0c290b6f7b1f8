"""Whether validation data keeps its order: its ids are a separate list, so a row gets its id by its position."""

import array
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from everstep.data import nest
from everstep.errors import Problem

_MAX_VALUES = 256  # of each sample's input: a digest of all of them could take longer than a validation step


class ValidationOrder:
    """Compares every pass over the validation data with the longest one before, sample by sample.

    A sample that differs from the one before at its position is out of order, unless only its input differs, and
    differs from the inputs at all other positions, too: that is random augmentation.
    """

    def __init__(self) -> None:
        self._inputs, self._labels = array.array("Q"), array.array("Q")
        self._random_inputs = False
        self._moved: int | None = None

    def compare(self, batches: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        """Yields the batches of a pass; a sample that is out of order is recorded, and does not end the pass."""
        first = 0
        for batch in batches:
            inputs, labels = (_digests(part) for part in batch[:2])
            known = len(self._inputs)
            self._compare(first, inputs, labels)
            for seen, new in ((self._inputs, inputs), (self._labels, labels)):
                seen.extend(new[max(known - first, 0) :].tolist())
            first += len(labels)
            yield batch

    @property
    def is_known(self) -> bool:
        """Whether there was a pass, or the beginning of one, to compare others with."""
        return len(self._labels) > 0

    @property
    def problem(self) -> Problem | None:
        """Why rows cannot be matched with their ids; None where all passes had the same order."""
        if self._moved is None:
            return None
        return Problem(
            "create_validation_generator()",
            f"validation data comes in another order in each pass, first at sample {self._moved}, so rows would get "
            "the ids of others",
            remedy="return it always in the order of get_validation_index(), and do not shuffle it",
        )

    def _compare(self, first: int, inputs: np.ndarray, labels: np.ndarray) -> None:
        place = slice(first, first + len(labels))
        inputs_before, labels_before = (np.array(seen[place], np.uint64) for seen in (self._inputs, self._labels))
        both = len(inputs_before)
        moved = labels[:both] != labels_before
        changed = inputs[:both] != inputs_before
        if changed.any() and not self._random_inputs:
            elsewhere = np.isin(inputs[:both], np.array(self._inputs, np.uint64))
            moved |= changed & elsewhere
            is_longer = len(self._inputs) > first + len(labels)
            self._random_inputs = is_longer and not moved.any()
        if moved.any() and self._moved is None:
            self._moved = first + int(moved.argmax())


def _digests(part: Any) -> np.ndarray:
    """Returns a number for each sample, equal for equal ones; of a large input, for values at fixed positions."""
    rows = [leaf.reshape(len(leaf), -1) for leaf in nest.flatten(part)]
    few = [np.ascontiguousarray(row[:, :: max(row.shape[1] // _MAX_VALUES, 1)]) for row in rows]
    return np.array([digest_of([row[number] for row in few]) for number in range(len(few[0]))], np.uint64)


def digest_of(values: Iterable[np.ndarray]) -> int:
    """Returns a number for the contents of arrays."""
    digest = hashlib.blake2b(digest_size=8)
    for each in values:
        digest.update(repr(each.tolist()).encode() if each.dtype.hasobject else each.tobytes())
    return int.from_bytes(digest.digest(), "little")
