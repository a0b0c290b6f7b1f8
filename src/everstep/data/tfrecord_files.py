"""The content of TFRecord files: their records, the features in them, and what is damaged.

A record consists of its length (8 bytes), a checksum of the length (4), the data, and a checksum of the data (4).
Walking from length to length finds a file's records without TensorFlow and without reading their data.
"""

import dataclasses
import hashlib
import logging
import mmap
import os
import shutil
import struct
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

from everstep.checkpoint.remote import is_url, local_files
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError
from everstep.storage import is_temporary

_HEADER, _FOOTER = 12, 4
_DIGITS = 16
_IMAGES = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP"}


class NoRecordFiles(UsageError, FileNotFoundError):
    """A dataset has no such files; also a `FileNotFoundError`."""


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


class BrokenFrame(ValueError):
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
    with open(path, "rb") as file:
        if not os.fstat(file.fileno()).st_size:
            return []
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
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
    found, digest = frames(path), hashlib.sha256()
    if found:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            digest.update(struct.pack(f"<{len(found)}Q", *(frame.length for frame in found)))
            # The checksum before each `Frame.end`, computed here because the property takes three times as long.
            ends = (offset + length + _HEADER + _FOOTER for offset, length in found)
            digest.update(b"".join([data[end - _FOOTER : end] for end in ends]))
    return Content(len(found), digest.hexdigest()[:_DIGITS])


def whole_frames(path: str | os.PathLike[str]) -> tuple[list[Frame], BrokenFrame | None]:
    """Returns the records up to the first broken frame, and the error there; None if there is none."""
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


logger = logging.getLogger(__name__)

_GROUP = 64
"""Number of records of a damaged file that are checked at once."""


class Damage(NamedTuple):
    """A record that cannot be read."""

    file: str
    offset: int
    record: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file!r} at byte {self.offset}, record {self.record}: {self.reason}"


class Salvaged:
    """Record files without their damaged records; each skipped record is logged as a warning.

    A file without damage is used directly. Other files are copied to a temporary folder, which exists as long as this
    object: without the damaged records, and without everything after a damaged length.

    Args:
      tf: The module `tensorflow`.
      files: Local, uncompressed files.

    Attributes:
      files: The paths to read instead.
      damages: The damaged records.

    Raises:
      UsageError: A file has no undamaged record.
    """

    def __init__(self, tf: Any, files: Sequence[str]) -> None:
        self._folder = ""
        self.damages: list[Damage] = []
        self.files = [self._undamaged(tf, file) for file in files]

    def _undamaged(self, tf: Any, file: str) -> str:
        found, damages = examine(tf, file)
        if not damages:
            return file
        for damage in damages:
            logger.warning("skipped: %s", damage)
        self.damages += damages
        bad = {damage.record for damage in damages}
        good = [frame for number, frame in enumerate(found) if number not in bad]
        if not good:
            raise UsageError("has no whole record", key="dataset", received=file, remedy="remove the file")
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="everstep-records-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        copy = Path(self._folder, f"{len(self.damages)}", os.path.basename(file))
        copy.parent.mkdir()
        _copy(file, good, copy)
        return str(copy)


def examine(tf: Any, file: str) -> tuple[list[Frame], list[Damage]]:
    """Reads a file to its end, and returns the positions of its records and which of them are damaged."""
    found, broken = whole_frames(file)
    damages = [Damage(file, found[number].data, number, "its data is damaged") for number in _damaged(tf, file, found)]
    if broken is not None:
        damages.append(Damage(file, broken.offset, len(found), f"{broken.reason}; nothing after it can be read"))
    return found, damages


def _damaged(tf: Any, file: str, found: Sequence[Frame]) -> Iterator[int]:
    """Yields the numbers of records whose data does not match its checksum, which TensorFlow computes fast."""
    good = _readable(tf, file)
    for first in range(good, len(found), _GROUP):  # TensorFlow stops at the first damaged record
        group = found[first : first + _GROUP]
        if not _is_undamaged(tf, file, group):
            yield from (first + at for at, frame in enumerate(group) if not _is_undamaged(tf, file, [frame]))


def _is_undamaged(tf: Any, file: str, group: Sequence[Frame]) -> bool:
    with tempfile.TemporaryDirectory(prefix="everstep-records-") as folder:
        copy = Path(folder, "group")
        _copy(file, group, copy)
        return _readable(tf, str(copy)) == len(group)


def _readable(tf: Any, file: str) -> int:
    count = 0
    try:
        for _ in tf.data.TFRecordDataset(file):
            count += 1
    except tf.errors.DataLossError:
        pass
    return count


def _copy(file: str, frames: Sequence[Frame], target: Path) -> None:
    with open(file, "rb") as source, open(target, "xb") as copy:
        for frame in frames:
            source.seek(frame.offset)
            copy.write(source.read(frame.end - frame.offset))


_SHOWN = 60
_SUFFIXES = (".tfrec", ".tfrecord")
_KEY = "PATH"


@dataclasses.dataclass
class Feature:
    """A feature of examples.

    Attributes:
      kinds: How many examples have it as `bytes`, `int64` or `float`, by kind.
      first: The first record of each kind, as text.
      least: The smallest number of values in an example.
      most: The largest number of values in an example.
      images: The formats of its values that are image files.
    """

    kinds: dict[str, int] = dataclasses.field(default_factory=dict)
    first: dict[str, str] = dataclasses.field(default_factory=dict)
    least: int | None = None
    most: int = 0
    images: set[str] = dataclasses.field(default_factory=set)

    @property
    def kind(self) -> str:
        """The kind in most examples."""
        return max(self.kinds, key=self.kinds.__getitem__)

    @property
    def records(self) -> int:
        """How many examples have it."""
        return sum(self.kinds.values())


@dataclasses.dataclass
class Inspection:
    """What record files contain.

    Attributes:
      files: Each file with its number of undamaged records and its size in bytes.
      features: The features of the inspected records, by name.
      inspected: How many records were inspected.
      examples: The values of the first records, as text.
      damages: The records that cannot be read.
    """

    files: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    features: dict[str, Feature] = dataclasses.field(default_factory=dict)
    inspected: int = 0
    examples: list[dict[str, str]] = dataclasses.field(default_factory=list)
    damages: list[Damage] = dataclasses.field(default_factory=list)


def image_kind(data: bytes) -> str | None:
    """Returns the format of an image file's bytes, None if TensorFlow does not decode it."""
    return next((kind for start, kind in _IMAGES.items() if data.startswith(start)), None)


def inspect(paths: Sequence[str], examples: int = 3, look: int = 1000) -> Inspection:
    """Reads record files to their ends, and returns what they contain.

    Args:
      paths: Files, or folders of files `*.tfrec` and `*.tfrecord`, or URLs of those.
      examples: How many of the first records to show.
      look: How many records of each file to inspect for features.

    Raises:
      UsageError: A file does not exist, or a record is not a `tf.train.Example`.
    """
    files, found = list(_files(paths)), Inspection()  # a missing file is reported before TensorFlow is loaded
    tf = load_tensorflow("reading TFRecord files")
    for name, file in files:
        frames, damages = examine(tf, file)
        bad = {damage.record for damage in damages}
        good = [frame for number, frame in enumerate(frames) if number not in bad]
        found.files.append((name, len(good), os.path.getsize(file)))
        found.damages += [damage._replace(file=name) for damage in damages]
        for number, record in enumerate(_records(file, good[:look])):
            _inspect_example(found, _example(tf, name, number, record), examples, f"record {number} of {name!r}")
    return found


def _files(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the user's name of each file, and its local path."""
    for path in paths:
        if is_url(path):
            yield from _stored(path)
        elif os.path.isdir(path):
            inside = [p for p in sorted(Path(path).iterdir()) if p.suffix in _SUFFIXES]
            names = [str(p) for p in inside if not is_temporary(p)]
            if not names:
                raise NoRecordFiles("has no file *.tfrec or *.tfrecord", key=_KEY, received=path)
            yield from zip(names, names, strict=True)
        elif os.path.isfile(path):
            yield path, path
        else:
            raise NoRecordFiles("there is no such file or folder", key=_KEY, received=path)


def _stored(url: str) -> Iterable[tuple[str, str]]:
    """Fetches a file, the files of a glob, or those of a folder."""
    patterns = [url, *(f"{url.rstrip('/')}/*{suffix}" for suffix in _SUFFIXES)]
    found = {name: path for pattern in patterns for name, path in local_files(pattern, _KEY).items()}
    if not found:
        raise NoRecordFiles("there is no record file", key=_KEY, received=url)
    return sorted(found.items())


def _records(file: str, frames: Sequence[Frame]) -> Iterator[bytes]:
    with open(file, "rb") as opened:
        for frame in frames:
            opened.seek(frame.data)
            yield opened.read(frame.length)


def _example(tf: Any, file: str, number: int, record: bytes) -> Any:
    try:
        return tf.train.Example.FromString(record)
    except Exception as error:  # protocol buffers raise their own kind
        reason = f"record {number} is not a tf.train.Example ({len(record)} bytes)"
        raise UsageError(reason, key=_KEY, received=file) from error


def differences(found: Inspection) -> Iterator[str]:
    """Yields a sentence for each feature that differs between the inspected records."""
    for name, feature in found.features.items():
        if len(feature.kinds) > 1:
            kinds = "; ".join(f"{kind} in {n}, first in {feature.first[kind]}" for kind, n in feature.kinds.items())
            yield f"{name!r} has several types, and a reader takes one: {kinds}"
        if feature.least != feature.most:
            yield f"{name!r} has {feature.least} to {feature.most} values: FixedLenFeature does not read it"
        if feature.records < found.inspected:
            missing = found.inspected - feature.records
            yield f"{name!r} is missing in {missing} of {found.inspected}: FixedLenFeature needs a default_value"


def _inspect_example(found: Inspection, example: Any, examples: int, where: str) -> None:
    found.inspected += 1
    shown = {}
    for name in sorted(example.features.feature):
        held = example.features.feature[name]
        kind = held.WhichOneof("kind")
        if kind is None:  # readers treat it as missing
            continue
        values = list(getattr(held, kind).value)
        _count(found.features.setdefault(name, Feature()), kind.removesuffix("_list"), values, where)
        shown[name] = _show(values)
    if len(found.examples) < examples:
        found.examples.append(shown)


def _count(feature: Feature, kind: str, values: list[Any], where: str) -> None:
    feature.kinds[kind] = feature.kinds.get(kind, 0) + 1
    feature.first.setdefault(kind, where)
    feature.most = max(feature.most, len(values))
    feature.least = len(values) if feature.least is None else min(feature.least, len(values))
    feature.images |= {image for v in values[:1] if isinstance(v, bytes) and (image := image_kind(v))}


def _show(values: list[Any]) -> str:
    """Returns values as a short text."""
    if len(values) == 1 and isinstance(values[0], bytes):
        if kind := image_kind(values[0]):
            return f"{kind} image, {len(values[0])} bytes"
        text = values[0].decode("utf-8", "replace")
        return repr(text) if len(text) <= _SHOWN and text.isprintable() else f"{len(values[0])} bytes"
    text = str(values[0] if len(values) == 1 else values)
    return text if len(text) <= _SHOWN else f"{len(values)} values: {text[: _SHOWN - 1]}…"
