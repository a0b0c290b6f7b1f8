"""Sources of records: how the files of one pass are read, in which order, and which of them is damaged."""

import abc
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.data.formats.bad_file import BadFile
from everstep.data.formats.tfrecord import RECORD_SUFFIXES, FeatureValues, features, is_gzip
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError, nearest
from everstep.storage import is_temporary
from everstep.types import Batch

COMPRESSIONS = ("", "GZIP", "ZLIB")
"""How a TFRecord file may be compressed."""

ReadFile = Callable[[Any], Any]
"""Returns the dataset of a file's records; called with the path as a tensor."""

_FILE_TYPES = {"tfrecord": "", "tfrecord_compressed": "GZIP"}


def read_records(compression: str = "") -> ReadFile:
    """Returns the function that reads a TFRecord file.

    Raises:
      UsageError: TFRecord files cannot have this compression.
    """
    check_compression(compression)
    tf = load_tensorflow("reading TFRecord files")
    return lambda file: tf.data.TFRecordDataset(file, compression)


def check_compression(compression: str) -> None:
    """Raises `UsageError` if TFRecord files cannot have this compression."""
    if compression not in COMPRESSIONS:
        known = ", ".join(repr(name) for name in COMPRESSIONS)
        raise UsageError(f"TFRecord files have one of {known}", key="compression", received=compression)


def pick_dataset_fn(file_type: str) -> ReadFile:
    """Returns a `dataset_fn` for `InputReader` by Model Garden's name: `tfrecord`, `tfrecord_compressed` (GZIP).

    Raises:
      UsageError: There is no such file type.
    """
    if file_type not in _FILE_TYPES:
        raise UsageError(
            "unknown file type", key="file_type", received=file_type, remedy=nearest(file_type, _FILE_TYPES)
        )
    return read_records(_FILE_TYPES[file_type])


def first_line(error: Exception) -> str:
    """Returns TensorFlow's message in one line, without the names of its operations."""
    line = str(getattr(error, "message", error)).partition("\n")[0]
    return re.sub(r"\{\{.*?\}\} | \[Op:.*", "", line)


PARALLEL_FILES = 8
"""Files read at once while shuffling; it determines the order, so it does not depend on the machine."""


@dataclasses.dataclass(frozen=True)
class Shard:
    """The part of the data that this process reads: every `count`-th file or record, from `index` on."""

    index: int = 0
    count: int = 1

    def takes_files(self, files: int) -> bool:
        """Whether there are enough files for each process to read its own."""
        return files >= max(2, self.count)

    def of(self, files: Sequence[Any]) -> list[Any]:
        """Returns this process's files."""
        return list(files[self.index :: self.count])


@dataclasses.dataclass(frozen=True)
class Interleave:
    """How several files are read in turn; see `DataConfig`."""

    cycle_length: int | None = None
    block_length: int = 1

    def cycle(self, files: int, shuffled: bool) -> int:
        """Returns how many files are read at once."""
        return min(self.cycle_length or (PARALLEL_FILES if shuffled else 1), files)


class NoRecordFiles(UsageError, FileNotFoundError):
    """A dataset has no such files; also a `FileNotFoundError`."""


class Source(abc.ABC):
    """Records that can be read in several passes."""

    @abc.abstractmethod
    def records(self, random: np.random.Generator | None) -> Any:
        """Returns the records of one pass as a dataset; the files are in their own order if `random` is None."""

    def readers(self) -> list[tuple[str, ReadFile]]:
        """Returns the files, and how each is read separately: to find the damaged one."""
        return []


class FileSource(Source):
    """The records of some files.

    Args:
      tf: The module `tensorflow`.
      files: The paths of the files.
      read: Returns the dataset of one file.
      interleave: How the files are read in turn.
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
    """Returns the files in their order, or in one drawn from `random`."""
    return list(files) if random is None else [files[index] for index in random.permutation(len(files))]


def seeds(random: np.random.Generator) -> list[int]:
    """Returns the two seeds of `shuffled`."""
    return [int(number) for number in random.integers(1, 2**62, size=2)]


def shuffled(tf: Any, dataset: Any, buffer: int, seed: Any, seed2: Any) -> Any:
    """Returns the dataset shuffled through a buffer; `Dataset.shuffle` would mix in TensorFlow's global seed."""
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


def shuffled_forever(tf: Any, dataset: Any, buffer: int, seed: int, seed2: int) -> Any:
    """Returns an endless dataset of passes over the dataset, each shuffled in its own order."""
    passes = tf.data.Dataset.counter()
    return passes.flat_map(lambda number: shuffled(tf, dataset, buffer, seed, seed2 + number))


def record_files(path: str | os.PathLike[str], key: str = "") -> list[str]:
    """Returns a file itself, or the record files in a folder, sorted; drafts are left out.

    Args:
      path: A file or a folder on this machine.
      key: What named it, for errors.

    Raises:
      NoRecordFiles: There are none.
    """
    if os.path.isfile(path):
        return [os.fspath(path)]
    if not os.path.isdir(path):
        raise NoRecordFiles("there is no such file or folder", key=key, received=os.fspath(path))
    files = [file for file in sorted(Path(path).iterdir()) if file.suffix in RECORD_SUFFIXES]
    names = [str(file) for file in files if not is_temporary(file)]
    if not names:
        raise NoRecordFiles("has no file *.tfrec or *.tfrecord", key=key, received=os.fspath(path))
    return names


_AT_ONCE = 32  # records that are taken from TensorFlow: one by one, that would cost more than parsing them


def read_examples(file: str, compression: str = "", key: str = "input_path") -> Iterator[dict[str, FeatureValues]]:
    """Yields the features of each `tf.train.Example` in a TFRecord file, in order.

    Args:
      file: The file.
      compression: How it is compressed.
      key: What named the file, for errors.

    Raises:
      UsageError: The file is damaged, or a record is not an example; `received` is the file.
    """
    tf, read = load_tensorflow("reading TFRecord files"), read_records(compression)
    pieces = naming_damage(tf, read(file).batch(_AT_ONCE).as_numpy_iterator(), [(file, read)], key)
    for number, record in enumerate(itertools.chain.from_iterable(pieces)):
        try:
            example = features(record)
        except BadFile as error:
            raise UsageError(f"record {number} {error}", key=key, received=file) from error
        yield example


Column = tuple[str, Sequence[int]]
"""The kind of a feature, `bytes`, `int64` or `float`, and its shape, the same in all examples."""


def read_columns(
    file: str, columns: Mapping[str, Column], size: int, key: str = "input_path"
) -> Iterator[dict[str, np.ndarray]]:
    """Yields features of the examples in a TFRecord file, `size` examples at a time, in order.

    TensorFlow parses them, several times as fast as `read_examples`.

    Args:
      file: The file, without compression.
      columns: The features to read, by name.
      size: How many examples to read at a time.
      key: What named the file, for errors.

    Raises:
      UsageError: The file is damaged, or an example has no such feature; `received` is the file.
    """
    tf, read, done = load_tensorflow("reading TFRecord files"), read_records(), 0
    types = {"bytes": tf.string, "int64": tf.int64, "float": tf.float32}
    parsing = {name: tf.io.FixedLenFeature(shape, types[kind]) for name, (kind, shape) in columns.items()}
    for records in naming_damage(tf, iter(read(file).batch(size)), [(file, read)], key):
        try:
            parsed = tf.io.parse_example(records, parsing)
        except tf.errors.OpError as error:
            last = done + len(records) - 1
            raise UsageError(
                f"between records {done} and {last}: {first_line(error)}", key=key, received=file
            ) from error
        done += len(records)
        yield {name: values.numpy() for name, values in parsed.items()}


def naming_damage(
    tf: Any, batches: Iterator[Batch], files: Sequence[tuple[str, ReadFile]], key: str = "input_path"
) -> Iterator[Batch]:
    """Yields the batches; if reading fails, raises an error with the damaged file, which TensorFlow does not name.

    Args:
      tf: The module `tensorflow`.
      batches: The batches that are read from the files.
      files: The paths of the files, and how each is read.
      key: The key that names the files, for errors.

    Raises:
      UsageError: A file is damaged, missing, or not what `read` expects; `received` is the file.
    """
    causes = (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
    try:
        yield from batches
    except causes as error:
        for file, read in files:
            _raise_if_damaged(tf, file, read, causes, key)
        raise UsageError(f"the records cannot be read: {first_line(error)}", key=key) from error


def _raise_if_damaged(tf: Any, file: str, read: ReadFile, causes: tuple[type[Exception], ...], key: str) -> None:
    records = 0
    try:
        for _ in read(tf.constant(file)):
            records += 1
    except causes as error:
        offset = re.search(r"record at (\d+)", str(error))
        place = f"{f'at byte {offset[1]}, ' if offset else ''}after {records} good records ({first_line(error)})"
        if not tf.io.gfile.exists(file):
            raise UsageError(f"is missing {place}", key=key, received=file) from error
        kind = "; it is a gzip file" if is_gzip(file) else ""
        raise UsageError(
            f"is damaged, or has another compression than specified, {place}{kind}",
            key=key,
            received=file,
            remedy="write it again, or specify its compression",
        ) from error
