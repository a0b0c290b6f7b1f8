"""How a TFRecord file is cut into records, read without TensorFlow and without the records themselves.

A record is its length (8 bytes), a checksum of that (4), the data, and a checksum of the data (4). Walking from length
to length counts a file's records in the time it takes to touch each of them once.
"""

import hashlib
import mmap
import os
import struct
from collections.abc import Iterator
from typing import NamedTuple

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

_HEADER, _FOOTER = 12, 4
_DIGITS = 16


class Frame(NamedTuple):
    """Where a record is in its file: its first byte, and the length of its data."""

    offset: int
    length: int

    @property
    def data(self) -> int:
        """The first byte of its data; where TensorFlow says that data is damaged."""
        return self.offset + _HEADER

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.offset + _HEADER + self.length + _FOOTER


class BrokenFrame(ValueError):
    """A file is no sequence of records from a place on.

    Attributes:
      offset: The first byte that belongs to no whole record.
      reason: What is wrong there.
    """

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(f"at byte {offset}: {reason}")
        self.offset, self.reason = offset, reason


def frames(path: str | os.PathLike[str]) -> list[Frame]:
    """Returns where the records of a local, uncompressed file are; their data is not looked at.

    Raises:
      BrokenFrame: The file ends inside a record, or a length is damaged.
      OSError: It cannot be read.
    """
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return list(_walk(data, check=False))
            except BrokenFrame:  # a damaged length shows only further on: this time look at each
                return list(_walk(data, check=True))


class Content(NamedTuple):
    """What a file holds: how many records, and a digest of their lengths and checksums in their order."""

    records: int
    digest: str


def content(path: str | os.PathLike[str]) -> Content:
    """Returns what a local, uncompressed file holds, as its frames tell it; the records' data is not read.

    A record's checksum stands right before the next one's length, so it costs little to look at both. Another record,
    or another order, is another digest, whatever the size.

    Raises:
      BrokenFrame: The file ends inside a record, or a length is damaged.
      OSError: It cannot be read.
    """
    found, digest = frames(path), hashlib.sha256()
    if found:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            digest.update(struct.pack(f"<{len(found)}Q", *(frame.length for frame in found)))
            digest.update(b"".join([data[end - _FOOTER : end] for end in _ends(found)]))
    return Content(len(found), digest.hexdigest()[:_DIGITS])


def _ends(found: list[Frame]) -> Iterator[int]:
    """Yields the first byte behind each record; as `Frame.end`, in a third of its time."""
    more = _HEADER + _FOOTER
    return (offset + length + more for offset, length in found)


def whole_frames(path: str | os.PathLike[str]) -> tuple[list[Frame], BrokenFrame | None]:
    """Returns the records up to the first place where a file is broken, and what is wrong there; None if nothing is."""
    found: list[Frame] = []
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return found, None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                for frame in _walk(data, check=True):
                    found.append(frame)
            except BrokenFrame as broken:
                return found, broken
    return found, None


def _walk(data: mmap.mmap, check: bool) -> Iterator[Frame]:
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
