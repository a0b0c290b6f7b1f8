"""Samples and batches counted: an epoch has the n samples that the loader announced, each once, and no other."""

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import keras
import numpy as np

from everstep.data import nest
from everstep.errors import UsageError

_PADDING = 4096  # samples that may be read beyond the end: what is missing in a last batch, or looked ahead at


def without_end(samples: Iterator[Any], count: int, what: str, batch_size: int | None = None) -> Iterator[Any]:
    """Yields samples, and after the last one that one again and again.

    Preprocessors take samples with `next(generator)` until a batch is full: at an end they would lose the batch they
    have begun, and Python would make of it a RuntimeError. What goes beyond `count` is cut off, see `exactly`.

    Args:
      samples: They; they may have no end themselves.
      count: How many were announced.
      what: Whose they are, for messages.
      batch_size: How many a batch has, where that is known.

    Raises:
      UsageError: There are fewer, or somebody reads on as if there were an end.
    """
    last, number = None, 0
    for number, last in enumerate(samples, start=1):  # noqa: B007  both are looked at after the loop
        yield last
    if number < count:
        raise UsageError(f"{what} gave {number} samples and announced {count}: return the number there is")
    yield from itertools.repeat(last, max(count, _PADDING, 2 * (batch_size or 0)))
    raise UsageError(
        f"{what} is read on and on after its {count} samples: make batches as samples come, with itertools.islice, "
        "and do not collect a generator in a list: it may have no end"
    )


def exactly(batches: Iterable[Any], count: int, n_iter: int, what: str) -> Iterator[tuple[Any, ...]]:
    """Yields batches of exactly `count` samples in all: the last one is cut where it goes on with the next pass.

    Args:
      batches: Tuples `(x, y)` or `(x, y, weights or ids)` whose leaves have a batch axis; they may have no end.
      count: How many samples there are.
      n_iter: How many batches that should be.
      what: Whose they are, for messages.

    Raises:
      UsageError: They end before, are no such tuples, or are not as many as announced.
    """
    done = number = 0
    for number, item in enumerate(_until_the_end(iter(batches)), start=1):  # noqa: B007  it is looked at below
        batch = _checked(item, what)
        size = len(nest.flatten(batch[1])[0])
        yield batch if done + size <= count else nest.map_leaves(lambda leaf, n=count - done: leaf[:n], batch)
        done += size
        if done >= count:
            break
    if done < count:
        raise UsageError(f"{what} ended after {done} samples, but {count} were announced")
    if number != n_iter:
        raise UsageError(
            f"{what}: batchify announced {n_iter} batches for {count} samples, but they fill {number}: return the "
            "samples by the batch size, rounded up, and leave no batch out"
        )


def _until_the_end(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields batches; what Python makes of a `next` that met the end inside a generator counts as the end."""
    while True:
        try:
            item = next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration):
                return
            raise
        yield item


def _checked(item: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(item, tuple | list) or not 2 <= len(item) <= 3:
        size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
        raise UsageError(
            f"{what}: a batch is (x, y, sample weights), or (x, y, ids) of test data; received "
            f"{type(item).__name__}{size}"
        )
    batch = tuple(nest.map_leaves(_array, part) for part in item)
    sizes = {len(leaf) if leaf.ndim else None for leaf in nest.flatten(batch)}
    if len(sizes) != 1 or None in sizes:
        shapes = nest.map_leaves(np.shape, batch)
        raise UsageError(f"{what}: the parts of a batch hold different numbers of samples: {shapes}")
    return batch


def _array(leaf: Any) -> np.ndarray:
    """Returns an array as Keras takes it: numbers that Python made double are of Keras's precision."""
    array = np.asarray(leaf)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array
