"""The records of a dataset's files, counted, and of them a sample that is always the same."""

import hashlib
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from everstep.data.damage import naming_damage
from everstep.data.files import COMPRESSIONS, ReadFile, read_records
from everstep.data.passes import FileSource, Interleave, Shard
from everstep.data.record_frames import BrokenFrame, Content, content
from everstep.errors import UsageError

_BUCKETS = 2**62
_KEY = (0x65766572, 0x73746570)
"""What makes the hashes of records ours; other numbers would draw other samples."""


_AT_ONCE = 128


class _AllAtOnce(Interleave):
    """Reads all files in turn while shuffling: one class per file is usual, and the buffer sees only what is read."""

    def cycle(self, files: int, shuffled: bool) -> int:
        """Returns how many files are read at once."""
        return min(files, _AT_ONCE) if shuffled else 1


class RecordSource(FileSource):
    """Record files that know how many records they have, so that an epoch's length is known before it is read.

    Of a percentage below 100, a sample: each record has a rank that follows from its file's name and its number in
    it, and the lowest ranks are taken. So a sample is the same everywhere, has the very number of records that the
    percentage says, and holds every smaller one.

    Args:
      tf: The module `tensorflow`.
      files: Their paths.
      counts: How many records each has.
      percentage: How many of them to read.
      compression: `""`, `"GZIP"` or `"ZLIB"`.
    """

    def __init__(self, tf: Any, files: Sequence[str], counts: Sequence[int], percentage: float, compression: str):
        self._whole, self._limit = read_records(compression), _BUCKETS
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
        """Returns the files, each to be read as a whole: where in a file a record is, a sample would not tell."""
        return [(file, self._whole) for file in self._files]

    def _read_sample(self, file: Any) -> Any:
        records = self._whole(file)
        if not self._sampled:
            return records
        chosen = records.enumerate().filter(lambda number, _: _ranks(self._tf, file, number) <= self._limit)
        return chosen.map(lambda _, record: record)


def _ranks(tf: Any, file: Any, numbers: Any) -> Any:
    """Returns the rank of records by their numbers in a file; its folder does not matter."""
    name = tf.strings.split(file, "/")[-1]
    texts = tf.strings.join([name, tf.strings.as_string(numbers)], separator="/")
    return tf.strings.to_hash_bucket_strong(texts, _BUCKETS, _KEY)


def count_records(tf: Any, files: Sequence[str], compression: str) -> list[Content]:
    """Returns how many records each file has, and what tells them from others.

    Both are seen from the frames of its records; a file that is compressed is read.

    Raises:
      UsageError: A file is damaged; names it and the place in it.
    """
    if compression not in COMPRESSIONS:
        known = ", ".join(repr(name) for name in COMPRESSIONS)
        raise UsageError(f"compression: received {compression!r}; TFRecord files have one of {known}")
    return [_count(tf, file, compression) for file in files]


def _count(tf: Any, file: str, compression: str) -> Content:
    if compression:
        return _content_read(tf, file, compression)
    try:
        return content(file)
    except BrokenFrame as broken:
        raise UsageError(
            f"{file!r} {broken}{_hint(file)}: write it again, or leave it out; on_corrupt='skip' reads what is whole"
        ) from broken
    except OSError as error:
        raise UsageError(f"{file!r} cannot be read: {error.strerror}") from error


def _content_read(tf: Any, file: str, compression: str) -> Content:
    """Returns what a compressed file holds; its digest is that of its bytes."""
    read = read_records(compression)
    records = sum(1 for _ in naming_damage(tf, iter(read(file)), [(file, read)]))
    with open(file, "rb") as opened:
        return Content(records, hashlib.file_digest(opened, "sha256").hexdigest()[:16])


def _hint(file: str) -> str:
    with open(file, "rb") as opened:
        return " (it is a gzip file: say compression='GZIP')" if opened.read(2) == b"\x1f\x8b" else ""


def identity(files: Sequence[str], contents: Sequence[Content]) -> dict[str, str]:
    """Returns what tells files from others: how many records, how many bytes, the digest of all records.

    By the file's name without its ending; dots, which part the keys of a configuration, are underlines.
    """
    return {
        os.path.splitext(os.path.basename(file))[0].replace(
            ".", "_"
        ): f"{records} records, {os.path.getsize(file)} bytes, {digest}"
        for file, (records, digest) in zip(files, contents, strict=True)
    }
