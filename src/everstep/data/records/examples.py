"""Rows of TFRecord files of `tf.train.Example`s, read without TensorFlow."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from everstep.data.record_sources import GZIP
from everstep.data.records.records import Records, Row
from everstep.data.tfrecord_files import BrokenFrame, frames
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
            with open(path, "rb") as file:
                packed = file.read(len(GZIP)) == GZIP
            if packed:
                raise UsageError(
                    "is compressed: its records cannot be found by number", key=key, received=path, remedy="unpack it"
                )
            self._spans = np.array([(frame.data, frame.length) for frame in frames(path)], np.int64).reshape(-1, 2)
        except BrokenFrame as error:
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
                    yield parse_example(file.read(length))
                except DecodeError:
                    raise self.error(number, f"is not a tf.train.Example ({length} bytes)") from None


def parse_example(data: bytes) -> Row:
    """Returns the features of a serialised `tf.train.Example`: a value each, or a list of values.

    Raises:
      DecodeError: The bytes are not an example.
    """
    row: Row = {}
    for name, feature in _example_class().FromString(data).features.feature.items():
        kind = feature.WhichOneof("kind")
        if kind is not None:  # readers treat an empty feature as missing
            values = list(getattr(feature, kind).value)
            row[name] = values[0] if len(values) == 1 else values
    return row


@functools.cache
def _example_class() -> Any:
    """Returns the class of `tf.train.Example`, from its definition; it is the same message as TensorFlow's own."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="everstep/example.proto", package="everstep", syntax="proto3")
    kinds = {"Bytes": field.TYPE_BYTES, "Float": field.TYPE_FLOAT, "Int64": field.TYPE_INT64}
    for name, kind in kinds.items():
        values = file.message_type.add(name=f"{name}List")
        values.field.add(name="value", number=1, label=field.LABEL_REPEATED, type=kind)
    feature = file.message_type.add(name="Feature")
    feature.oneof_decl.add(name="kind")
    for number, name in enumerate(kinds, 1):
        part = f"{name.lower()}_list"
        feature.field.add(
            name=part,
            number=number,
            label=field.LABEL_OPTIONAL,
            type=field.TYPE_MESSAGE,
            type_name=f".everstep.{name}List",
            oneof_index=0,
        )
    features = file.message_type.add(name="Features")
    entry = features.nested_type.add(name="FeatureEntry", options=descriptor_pb2.MessageOptions(map_entry=True))
    entry.field.add(name="key", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_STRING)
    entry.field.add(
        name="value", number=2, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".everstep.Feature"
    )
    features.field.add(
        name="feature",
        number=1,
        label=field.LABEL_REPEATED,
        type=field.TYPE_MESSAGE,
        type_name=".everstep.Features.FeatureEntry",
    )
    example = file.message_type.add(name="Example")
    example.field.add(
        name="features", number=1, label=field.LABEL_OPTIONAL, type=field.TYPE_MESSAGE, type_name=".everstep.Features"
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("everstep.Example"))
