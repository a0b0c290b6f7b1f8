"""Batches of a folder's records: `get_tfrecord_dataset`, `get_train_ds`, `get_valid_ds`.

Records are counted before they are read, so the length of an epoch is known; a percentage always selects the same ones.
"""

import contextlib
import functools
import hashlib
import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeVar

import numpy as np

from everstep.data.arguments import whole_number
from everstep.data.formats.bad_file import BadFile
from everstep.data.formats.tfrecord import BrokenFrame, Content, content, features, is_gzip
from everstep.data.input_reader import Hooks, InputStream, Reading
from everstep.data.stream import OwnRows, Part
from everstep.data.tf_data import load_tensorflow
from everstep.data.tfrecord.folders import (
    KEY,
    SPLITS,
    checked_percentage,
    dataset_folder,
    folder_path,
    get_labels,
    naming_urls,
    split_files,
)
from everstep.data.tfrecord.inspection import Salvaged
from everstep.data.tfrecord.sources import (
    FileSource,
    Interleave,
    ReadFile,
    Shard,
    check_compression,
    first_line,
    naming_damage,
    read_records,
)
from everstep.errors import UsageError, nearest
from everstep.types import Batch

Function = Callable[..., Any]
_Read = TypeVar("_Read")

SHUFFLE_BUFFER = 2048
"""Size of the shuffle buffer, in encoded records."""

_FILES_AT_ONCE = 128
_BUCKETS = 2**62
_HASH_KEY = (0x65766572, 0x73746570)
"""The key of the records' hashes; other numbers would select other samples."""

_SHORT = 40  # characters of a feature's value in a message


def identity_augmentation(x: Any, y: Any) -> tuple[Any, Any]:
    """Returns the sample unchanged."""
    return x, y


def get_train_ds(
    dataset: str | os.PathLike[str],
    read_func: Function,
    global_batch_size: int,
    percentage: float = 100,
    data_augmentation: Function = identity_augmentation,
    **settings: Any,
) -> "RecordStream":
    """Returns the training data of a dataset: shuffled in each epoch, in full batches.

    Args:
      dataset: The dataset's folder, with `train-*.tfrec`, or its URL in a store.
      read_func: Converts one record to a sample; called with the keyword `example`.
      global_batch_size: Samples per step.
      percentage: How much of it to use: `<dataset>-subset-<percentage>` if that exists, else a sample of it.
      data_augmentation: Changes a sample: `(x, y) -> (x, y)`.
      **settings: Further arguments of `get_tfrecord_dataset`.

    Raises:
      UsageError: See `get_tfrecord_dataset`.
    """
    folder, rest = dataset_folder(dataset, percentage)
    return get_tfrecord_dataset(
        folder, read_func, global_batch_size, "train", data_augmentation, percentage=rest, **settings
    )


def get_valid_ds(
    dataset: str | os.PathLike[str],
    read_func: Function,
    global_batch_size: int,
    percentage: float = 100,
    **settings: Any,
) -> "RecordStream":
    """Returns the validation data of a dataset: `valid-*.tfrec`, in order, every sample once; see `get_train_ds`."""
    folder, rest = dataset_folder(dataset, percentage)
    return get_tfrecord_dataset(folder, read_func, global_batch_size, "valid", percentage=rest, **settings)


def get_tfrecord_dataset(
    dataset_path: str | os.PathLike[str],
    preprocessing: Function,
    global_batch_size: int,
    split: str | bool | None = None,
    data_augmentation: Function = identity_augmentation,
    *,
    is_train: bool | None = None,
    percentage: float = 100,
    seed: int = 0,
    shuffle_buffer: int = SHUFFLE_BUFFER,
    compression: str = "",
    on_corrupt: Literal["raise", "skip"] = "raise",
) -> "RecordStream":
    """Returns the batches of a dataset's records.

        read = functools.partial(read_tfrecord, size=112, label_list=labels)
        train_ds = get_tfrecord_dataset("data/faces", read, 64, "train")

    Training data is shuffled across files in an order that follows from (seed, epoch), augmented, and cut into full
    batches; validation data comes in the order of its files, to the last sample. A resumed run gets the very next
    batch.

    Args:
      dataset_path: The folder of the record files, or its URL in a store: they are fetched once.
      preprocessing: Converts one serialised record to a sample, in TensorFlow; called with the keyword `example`.
      global_batch_size: Samples per step.
      split: `train` or `valid`: the prefix of the files' names.
      data_augmentation: Changes a training sample; called with what `preprocessing` returned.
      is_train: Instead of `split`: True for `train`, False for `valid`.
      percentage: How many of the records to read, always the same ones.
      seed: With the epoch, determines the order of training data.
      shuffle_buffer: Size of the shuffle buffer, in records.
      compression: The compression of the files: `""`, `"GZIP"` or `"ZLIB"`.
      on_corrupt: `raise` stops at a damaged record and names it; `skip` skips it with a warning, and reads all files
        once at the start.

    Raises:
      NoRecordFiles: There are no such files; also a FileNotFoundError.
      UsageError: An argument is invalid, or a file is damaged.
    """
    tf = load_tensorflow("reading TFRecord files")
    training = _is_training(split, is_train)
    if on_corrupt not in ("raise", "skip"):
        remedy = nearest(str(on_corrupt), ("raise", "skip"))
        raise UsageError("unknown choice", key="on_corrupt", received=on_corrupt, remedy=remedy)
    if on_corrupt == "skip" and compression:
        raise UsageError("needs files without compression", key="on_corrupt", received="skip", remedy="rewrite them")
    check_compression(compression)
    global_batch_size = whole_number("global_batch_size", global_batch_size)
    shuffle_buffer, seed = whole_number("shuffle_buffer", shuffle_buffer, 0), whole_number("seed", seed, 0)
    percentage = checked_percentage(percentage)
    _require_keyword(preprocessing)
    folder = folder_path(dataset_path)
    names = split_files(folder, SPLITS[0] if training else SPLITS[1])
    salvaged = Salvaged(tf, list(names)) if on_corrupt == "skip" else None
    files = salvaged.files if salvaged else list(names)
    with naming_urls(names):
        contents = [_content(tf, file, compression) for file in files]
    source = RecordSource(tf, files, [each.records for each in contents], percentage, compression)
    _require_batches(source.size, global_batch_size, list(names.values()), training)
    augment = data_augmentation if training and data_augmentation is not identity_augmentation else None
    hooks = Hooks(decode=lambda record: preprocessing(example=record), parse=augment)
    reading = Reading(global_batch_size, training, training, shuffle_buffer, seed, training)
    order = {"seed": seed, "shuffle_buffer": shuffle_buffer} if training else {}
    facts = {"files": _identity(files, contents), "percentage": percentage, "batch": global_batch_size, **order}
    return RecordStream(source, hooks, reading, facts, names, salvaged, folder)


def _is_training(split: str | bool | None, is_train: bool | None) -> bool:
    both = {"split": split, "is_train": is_train}
    if (split is None) == (is_train is None):
        raise UsageError("expected one of the two", key="split", received=both, remedy="split='train' or 'valid'")
    if isinstance(split, str) and split not in SPLITS:
        raise UsageError("unknown split", key="split", received=split, remedy=nearest(split, SPLITS))
    if not isinstance(split, str | bool | np.bool_ | None) or not isinstance(is_train, bool | np.bool_ | None):
        raise UsageError("expected 'train' or 'valid'", key="split", received=both)
    return split == SPLITS[0] if isinstance(split, str) else bool(split if is_train is None else is_train)


def _require_keyword(preprocessing: Function) -> None:
    """Refuses a function that cannot be called with only `example=`; arguments bound by a partial count."""
    if not callable(preprocessing):
        raise UsageError("expected a function of one record", key="preprocessing", received=preprocessing)
    try:
        inspect.signature(preprocessing).bind(example=b"")
    except TypeError as error:
        raise UsageError(
            f"is called with the keyword example= and nothing else, which does not fit: {error}",
            key="preprocessing",
            remedy="bind the other arguments, as in functools.partial(read_tfrecord, size=112)",
        ) from None
    except ValueError:  # a compiled function has no signature
        return


def _require_batches(records: int, batch: int, files: list[str], training: bool) -> None:
    if not records:
        reason = f"and {len(files) - 1} more have no record at all"
        raise UsageError(reason, key=KEY, received=files[0], remedy="write them again")
    if training and records < batch:
        raise UsageError(
            f"but there are {records} training records in {os.path.dirname(files[0])!r}, and only full batches are "
            "trained on",
            key="global_batch_size",
            received=batch,
            remedy=f"use at most {records}",
        )


class _AllAtOnce(Interleave):
    """Reads all files in turn while shuffling: one class per file is usual, and the buffer holds only what is read."""

    def cycle(self, files: int, shuffled: bool) -> int:
        """Returns how many files are read at once."""
        return min(files, _FILES_AT_ONCE) if shuffled else 1


class RecordSource(FileSource):
    """Record files whose numbers of records are known, so that an epoch's length is known before it is read.

    A percentage below 100 selects a sample: each record has a rank that follows from its file's name and its number in
    it, and the lowest ranks are taken. So a sample is the same everywhere, has exactly the right number of records, and
    contains every smaller sample.

    Args:
      tf: The module `tensorflow`.
      files: Paths of the files.
      counts: The number of records of each file.
      percentage: How many of the records to read.
      compression: `""`, `"GZIP"` or `"ZLIB"`.
    """

    def __init__(self, tf: Any, files: Sequence[str], counts: Sequence[int], percentage: float, compression: str):
        self._read_all, self._limit = read_records(compression), _BUCKETS
        total = sum(counts)
        self.size = total if percentage == 100 else max(1, round(total * percentage / 100))
        if self.size < total:
            ranks = [_ranks(tf, file, np.arange(count)).numpy() for file, count in zip(files, counts, strict=True)]
            self._limit = int(np.partition(np.concatenate(ranks), self.size - 1)[self.size - 1])
        self._sampled = self.size < total
        super().__init__(tf, files, self._read_sample, _AllAtOnce(), Shard())

    def records(self, random: np.random.Generator | None) -> Any:
        """Returns the records of one pass; see `Source.records`."""
        return super().records(random).apply(self._tf.data.experimental.assert_cardinality(self.size))

    def readers(self) -> list[tuple[str, ReadFile]]:
        """Returns the files, each with all its records: in a sample, numbers of records would be wrong."""
        return [(file, self._read_all) for file in self._files]

    def _read_sample(self, file: Any) -> Any:
        records = self._read_all(file)
        if not self._sampled:
            return records
        chosen = records.enumerate().filter(lambda number, _: _ranks(self._tf, file, number) <= self._limit)
        return chosen.map(lambda _, record: record)


def _ranks(tf: Any, file: Any, numbers: Any) -> Any:
    """Returns the ranks of records by their numbers in a file; the file's folder does not matter."""
    name = tf.strings.split(file, "/")[-1]
    texts = tf.strings.join([name, tf.strings.as_string(numbers)], separator="/")
    return tf.strings.to_hash_bucket_strong(texts, _BUCKETS, _HASH_KEY)


def _content(tf: Any, file: str, compression: str) -> Content:
    """Returns how many records a file has, and a digest: of the records' frames, or of the bytes if compressed.

    Raises:
      UsageError: The file is damaged; `received` is the file.
    """
    try:
        if not compression:
            return content(file)
        read = read_records(compression)
        records = sum(1 for _ in naming_damage(tf, iter(read(file)), [(file, read)], KEY))
        with open(file, "rb") as opened:
            return Content(records, hashlib.file_digest(opened, "sha256").hexdigest()[:16])
    except BrokenFrame as broken:
        hint = "; it is a gzip file: specify compression='GZIP'" if is_gzip(file) else ""
        raise UsageError(
            f"is damaged {broken}{hint}",
            key=KEY,
            received=file,
            remedy="write it again, or remove it; on_corrupt='skip' reads the records that are whole",
        ) from broken
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", key=KEY, received=file) from error


def _identity(files: Sequence[str], contents: Sequence[Content]) -> dict[str, str]:
    """Returns what identifies the content of each file: number of records, bytes, digest.

    The keys are the files' names without suffix; dots, which separate the keys of a configuration, become underscores.
    """
    names = [os.path.splitext(os.path.basename(file))[0].replace(".", "_") for file in files]
    return {
        name: f"{records} records, {os.path.getsize(file)} bytes, {digest}"
        for name, file, (records, digest) in zip(names, files, contents, strict=True)
    }


class RecordStream(InputStream):
    """Batches of a dataset's records, NumPy arrays; returned by `get_tfrecord_dataset`.

        for images, labels in stream: ...     # one epoch; the next loop reads the next epoch
        len(stream)                           # batches in an epoch
        stream.dataset(epoch=3)               # a `tf.data.Dataset` of that epoch

    `Training.run_train` and `everstep.fit` read it as any `Stream`: epoch after epoch, from any batch on.

    Args:
      source: The records.
      hooks: The user's functions.
      reading: How to read.
      facts: Plain values that determine the batches: a resumed run has to have the same.
      names: The user's name of each file, by its local path.
      owns: An object that is kept alive as long as the stream.
      folder: The folder of the files, or its URL.
    """

    _key = KEY

    def __init__(
        self,
        source: RecordSource,
        hooks: Hooks,
        reading: Reading,
        facts: Mapping[str, Any],
        names: Mapping[str, str],
        owns: Any = None,
        folder: str = "",
    ) -> None:
        super().__init__(source, hooks, reading)
        self._folder = folder
        self.facts = dict(facts)
        self._names = dict(names)
        self._source, self._preprocess, self._owns = source, hooks.decode, owns
        self._epochs_read = 0

    @property
    def classes(self) -> list[str]:
        """The lines of the folder's `labels.txt`; see `get_labels`."""
        with contextlib.suppress(UsageError):
            return get_labels(self._folder)[1] if self._folder else []
        return []

    def __len__(self) -> int:
        return self.batches_per_epoch or 0

    def __iter__(self) -> Iterator[Batch]:
        """Returns the batches of one epoch, each time of the next one; the stream's position does not change."""
        epoch = self._epochs_read
        self._epochs_read += 1
        return self.open(epoch, 0)

    def dataset(self, epoch: int = 0) -> Any:
        """Returns the batches of one epoch as a `tf.data.Dataset`."""
        return self._pipeline.batches(epoch, 0).prefetch(self._prefetch)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on; an error names the file and the record."""
        return self._naming_records(functools.partial(super().open, epoch, batch))

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Returns these rows of the epoch's batches from that batch on; an error names the file and the record."""
        return self._naming_records(functools.partial(super().open_rows, epoch, batch, rows))

    def _naming_records(self, opened: Callable[[], Iterator[_Read]]) -> Iterator[_Read]:
        """Yields what is read."""
        errors = self._tf.errors
        with naming_urls(self._names):
            try:
                yield from opened()
            except errors.FailedPreconditionError as error:
                raise UsageError(
                    f"the record files have changed: they had {self._source.size} records when they were counted",
                    key=KEY,
                    remedy="do not change them while they are read",
                ) from error
            except errors.OpError as error:
                raise _failed_record(self._tf, error, self._source.readers(), self._preprocess) from error


def _failed_record(
    tf: Any, error: Exception, files: Sequence[tuple[str, ReadFile]], preprocess: Callable[[Any], Any] | None
) -> UsageError:
    """Returns the error that names the record on which `preprocess` fails: TensorFlow names only an operation."""
    message = first_line(error)
    for file, read in files:
        number = _first_failure(tf, file, read, preprocess or (lambda record: record))
        if number is not None:
            record = next(iter(read(tf.constant(file)).skip(number)))
            hint = " (nothing was found: is the label in labels.txt?)" if "slice index" in message else ""
            return UsageError(
                f"preprocessing fails on record {number} ({_short_features(record.numpy())}): {message}{hint}",
                key=KEY,
                received=file,
                remedy="correct the record, or the function",
            )
    return UsageError(
        f"the records are read, but cannot be batched: {message}", remedy="check data_augmentation and the shapes"
    )


def _first_failure(tf: Any, file: str, read: ReadFile, preprocess: Callable[[Any], Any]) -> int | None:
    samples = read(tf.constant(file)).map(preprocess, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    count, iterator = 0, iter(samples)
    while True:
        try:
            next(iterator)
        except StopIteration:
            return None
        except tf.errors.OpError:
            return count
        count += 1


def _short_features(record: bytes) -> str:
    """Returns the features of an example that have one short value, as text."""
    try:
        example = features(record)
    except BadFile as error:
        return f"which {error}"
    shown = []
    for name, (_, values) in sorted(example.items()):
        if len(values) == 1:
            text = repr(values[0].decode("utf-8", "replace") if isinstance(values[0], bytes) else values[0])
            shown += [f"{name}={text}"] if len(text) <= _SHORT else []
    return ", ".join(shown) or "no short features"
