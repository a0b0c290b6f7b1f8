"""One pass over the records of a source: which files in which order, interleaved, and this process's part of them."""

import abc
import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from everstep.data.files import ReadFile

PARALLEL_FILES = 8
"""Files read at once while shuffling; part of the order, so it never follows the machine."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """This process's part: every `count`-th, from `index` on."""

    index: int = 0
    count: int = 1

    def takes_files(self, files: int) -> bool:
        """Whether there are enough files for each process to have its own."""
        return files >= max(2, self.count)

    def of(self, files: Sequence[Any]) -> list[Any]:
        """Returns the part of the files."""
        return list(files[self.index :: self.count])


@dataclasses.dataclass(frozen=True)
class Interleave:
    """How files are read in turn; see `DataConfig`."""

    cycle_length: int | None = None
    block_length: int = 1

    def cycle(self, files: int, shuffled: bool) -> int:
        """Returns how many files are read at once."""
        return min(self.cycle_length or (PARALLEL_FILES if shuffled else 1), files)


class Source(abc.ABC):
    """Records to be read again and again."""

    @abc.abstractmethod
    def records(self, random: np.random.Generator | None) -> Any:
        """Returns the records of one pass as a dataset, the files in their natural order if `random` is None."""

    def readers(self) -> list[tuple[str, ReadFile]]:
        """Returns the files behind it, and how each is read alone: to find the one that cannot be."""
        return []


class FileSource(Source):
    """The records of some files.

    Args:
      tf: The module `tensorflow`.
      files: Their paths.
      read: Makes a dataset from one path.
      interleave: How they are read in turn.
      shard: This process's part: of the files if there are enough, else of the records.
    """

    def __init__(self, tf: Any, files: Sequence[str], read: ReadFile, interleave: Interleave, shard: Shard):
        self._files, self._read = list(files), read
        self._tf, self._interleave, self._shard = tf, interleave, shard

    def records(self, random: np.random.Generator | None) -> Any:
        """Returns the records of one pass; see `Source.records`."""
        files = arranged(self._files, random)
        by_file = self._shard.takes_files(len(files))
        mine = self._shard.of(files) if by_file else files
        records = self._read_in_turn(mine, random is not None)
        return records if by_file or self._shard.count == 1 else records.shard(self._shard.count, self._shard.index)

    def readers(self) -> list[tuple[str, ReadFile]]:
        """Returns the files and how each is read; see `Source.readers`."""
        return [(file, self._read) for file in self._files]

    def _read_in_turn(self, files: list[str], shuffled: bool) -> Any:
        cycle, block = self._interleave.cycle(len(files), shuffled), self._interleave.block_length
        paths = self._tf.data.Dataset.from_tensor_slices(files)
        if cycle == 1:
            return paths.flat_map(self._read)
        return paths.interleave(
            self._read, cycle_length=cycle, block_length=block, num_parallel_calls=cycle, deterministic=True
        )


def arranged(files: Sequence[Any], random: np.random.Generator | None) -> list[Any]:
    """Returns the files as they are, or in an order drawn from `random`."""
    return list(files) if random is None else [files[index] for index in random.permutation(len(files))]


def seeds(random: np.random.Generator) -> list[int]:
    """Returns two numbers for `shuffled`."""
    return [int(number) for number in random.integers(1, 2**62, size=2)]


def shuffled(tf: Any, dataset: Any, buffer: int, seed: Any, seed2: Any) -> Any:
    """Returns the dataset shuffled through a buffer; `Dataset.shuffle` would mix TensorFlow's global seed into ours."""
    specs = [part for spec in tf.nest.flatten(dataset.element_spec) for part in spec._flat_tensor_specs]
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=buffer,
        seed=seed,
        seed2=seed2,
        output_types=[spec.dtype for spec in specs],
        output_shapes=[spec.shape for spec in specs],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def without_end(tf: Any, dataset: Any, buffer: int, seed: int, seed2: int) -> Any:
    """Returns pass after pass over the dataset, each shuffled in an order of its own."""
    passes = tf.data.Dataset.counter()
    return passes.flat_map(lambda number: shuffled(tf, dataset, buffer, seed, seed2 + number))
