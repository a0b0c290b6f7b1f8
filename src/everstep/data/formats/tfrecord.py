"""TFRecord files: where their records are, and what the `tf.train.Example`s in them hold, without TensorFlow.

A record consists of its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4).
Walking from length to length finds a file's records without reading their data. The checksums of the data are left to
TensorFlow, which computes them fast: `read_examples` and `inspect` of `everstep.data` verify them.
"""

import contextlib
import functools
import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from everstep.data.formats.bad_file import BadFile

RECORD_SUFFIXES = (".tfrecord", ".tfrecords", ".tfrec")

_HEADER, _FOOTER = 12, 4
_DIGITS = 16
_GZIP = b"\x1f\x8b"


def is_gzip(path: str | os.PathLike[str]) -> bool:
    """Returns whether a local file is compressed by gzip."""
    with open(path, "rb") as file:
        return file.read(len(_GZIP)) == _GZIP


class Frame(NamedTuple):
    """The position of a record in its file: its first byte, and the length of its data."""

    offset: int
    length: int

    @property
    def data(self) -> int:
        """The first byte of the data; TensorFlow reports damaged data at this offset."""
        return self.offset + _HEADER

    @property
    def end(self) -> int:
        """The first byte after the record."""
        return self.offset + _HEADER + self.length + _FOOTER


class BrokenFrame(BadFile):
    """A file is not a sequence of records, from some byte on.

    Args:
      offset: The first byte that belongs to no complete record.
      reason: What is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")
        self.offset, self.reason = offset, reason


def frames(path: str | os.PathLike[str]) -> list[Frame]:
    """Returns the positions of the records of a local, uncompressed file; their data is not read.

    Raises:
      BrokenFrame: The file ends inside a record, or a length is damaged.
      OSError: The file cannot be read.
    """
    with _mapped(path) as data:
        try:
            return list(_walk(data, check=False))
        except BrokenFrame:  # a damaged length is noticed only later: check every length this time
            return list(_walk(data, check=True))


class Content(NamedTuple):
    """What a file holds: how many records, and a digest of their lengths and checksums in their order."""

    records: int
    digest: str


def content(path: str | os.PathLike[str]) -> Content:
    """Returns what a local, uncompressed file holds, by its frames; the records' data is not read.

    A record's checksum is right before the next one's length, so reading both costs little. Other records, or another
    order, give another digest even if the size is the same.

    Raises:
      BrokenFrame: The file ends inside a record, or a length is damaged.
      OSError: The file cannot be read.
    """
    records = frames(path)
    digest = hashlib.sha256(struct.pack(f"<{len(records)}Q", *(frame.length for frame in records)))
    with _mapped(path) as data:
        # The checksum before each `Frame.end`, computed here because the property takes three times as long.
        ends = (offset + length + _HEADER + _FOOTER for offset, length in records)
        digest.update(b"".join([data[end - _FOOTER : end] for end in ends]))
    return Content(len(records), digest.hexdigest()[:_DIGITS])


def whole_frames(path: str | os.PathLike[str]) -> tuple[list[Frame], BrokenFrame | None]:
    """Returns the records up to the first broken frame, and the error there; None if there is none."""
    records: list[Frame] = []
    with _mapped(path) as data:
        try:
            for frame in _walk(data, check=True):
                records.append(frame)
        except BrokenFrame as broken:
            return records, broken
    return records, None


@contextlib.contextmanager
def _mapped(path: str | os.PathLike[str]) -> Iterator[mmap.mmap | bytes]:
    """Yields the bytes of a file, which are read where they are used."""
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:  # an empty file cannot be mapped
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield data


def _walk(data: mmap.mmap | bytes, check: bool) -> Iterator[Frame]:
    offset, size = 0, len(data)
    while offset < size:
        if size - offset < _HEADER:
            raise BrokenFrame(offset, "the file ends inside a record")
        length, checksum = struct.unpack_from("<QI", data, offset)
        if check and masked_crc32c(data[offset : offset + 8]) != checksum:
            raise BrokenFrame(offset, "the length of a record is damaged")
        frame = Frame(offset, length)
        if frame.end > size:
            raise BrokenFrame(offset, "the file ends inside a record")
        yield frame
        offset = frame.end


# -- examples ----------------------------------------------------------------------------------------------------------


class FeatureValues(NamedTuple):
    """A feature of an example: its kind, `bytes`, `int64` or `float`, and its values."""

    kind: str
    values: list[Any]


def features(data: bytes) -> dict[str, FeatureValues]:
    """Returns the features of a serialised `tf.train.Example`, by name; those without a kind are left out.

    Raises:
      BadFile: The bytes are not an example.
    """
    try:
        named = _example_class().FromString(data).features.feature
    except DecodeError as error:
        raise BadFile(f"is not a tf.train.Example ({len(data)} bytes)") from error
    kinds = {name: feature.WhichOneof("kind") for name, feature in named.items()}
    return {
        name: FeatureValues(kind.removesuffix("_list"), list(getattr(named[name], kind).value))
        for name, kind in kinds.items()
        if kind is not None  # TensorFlow's readers treat it as missing
    }


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
