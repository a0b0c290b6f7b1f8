"""Rows of TFRecord files of `tf.train.Example`s, read without TensorFlow."""

from collections.abc import Iterator, Sequence

import numpy as np

from everstep.data.formats.bad_file import BadFile
from everstep.data.formats.tfrecord import features, frames, is_gzip
from everstep.data.records.records import Records, Row
from everstep.errors import UsageError


class TfExamples(Records):
    """The examples of one uncompressed TFRecord file: a column for each feature.

    A feature with one value is that value, bytes, an int or a float; one with several is a list. The frames of the
    file are checked, the checksums of the records' data are not: that takes TensorFlow (`everstep data inspect`).

    Args:
      path: The file.
      key: The configuration key that names it, for errors.

    Raises:
      UsageError: It is compressed, damaged, or cannot be read.
    """

    def __init__(self, path: str, key: str) -> None:
        super().__init__(key)
        self._path = path
        try:
            if is_gzip(path):
                raise UsageError(
                    "is compressed: its records cannot be found by number", key=key, received=path, remedy="unpack it"
                )
            self._spans = np.array([(frame.data, frame.length) for frame in frames(path)], np.int64).reshape(-1, 2)
        except BadFile as error:
            raise UsageError(f"is damaged {error}", key=key, received=path, remedy="write it again") from error
        except OSError as error:
            raise UsageError(f"cannot be read: {error.strerror}", key=key, received=path) from error

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def columns(self) -> tuple[str, ...]:
        """The features of the first example; others may have more, or fewer."""
        return tuple(sorted(self[0])) if len(self) else ()

    @property
    def files(self) -> Sequence[str]:
        """The file."""
        return [self._path]

    def where(self, number: int) -> str:
        """Returns the file, and the number of a record in it."""
        return f"{self._path}, record {number}"

    def read(self, numbers: Sequence[int]) -> list[Row]:
        """Returns the examples of these numbers."""
        return list(self._read(numbers))

    def _read(self, numbers: Sequence[int]) -> Iterator[Row]:
        with open(self._path, "rb") as file:  # no handle stays open: copies go to other processes
            for number in numbers:
                offset, length = self._spans[number].tolist()
                file.seek(offset)
                try:
                    example = features(file.read(length))
                except BadFile as error:
                    raise self.error(number, str(error)) from None
                yield {name: values[0] if len(values) == 1 else values for name, (_, values) in example.items()}
