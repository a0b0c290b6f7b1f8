"""What is in TFRecord files: the features of their records, and what is damaged."""

import dataclasses
import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everstep.checkpoint.remote import is_url, local_files
from everstep.data.formats.bad_file import BadFile
from everstep.data.formats.images import image_kind
from everstep.data.formats.tfrecord import RECORD_SUFFIXES, FeatureValues, Frame, features, whole_frames
from everstep.data.tf_data import load_tensorflow
from everstep.data.tfrecord.sources import NoRecordFiles, record_files
from everstep.errors import UsageError

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
        frames, damages = examine(tf, file)
        if not damages:
            return file
        for damage in damages:
            logger.warning("skipped: %s", damage)
        self.damages += damages
        bad = {damage.record for damage in damages}
        good = [frame for number, frame in enumerate(frames) if number not in bad]
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
    frames, broken = whole_frames(file)
    damages = [
        Damage(file, frames[number].data, number, "its data is damaged") for number in _damaged(tf, file, frames)
    ]
    if broken is not None:
        damages.append(Damage(file, broken.offset, len(frames), f"{broken.reason}; nothing after it can be read"))
    return frames, damages


def _damaged(tf: Any, file: str, frames: Sequence[Frame]) -> Iterator[int]:
    """Yields the numbers of records whose data does not match its checksum, which TensorFlow computes fast."""
    good = _readable(tf, file)
    for first in range(good, len(frames), _GROUP):  # TensorFlow stops at the first damaged record
        group = frames[first : first + _GROUP]
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


def inspect(paths: Sequence[str], examples: int = 3, look: int = 1000) -> Inspection:
    """Reads record files to their ends, and returns what they contain.

    Args:
      paths: Files, or folders of files `*.tfrec` and `*.tfrecord`, or URLs of those.
      examples: How many of the first records to show.
      look: How many records of each file to inspect for features.

    Raises:
      UsageError: A file does not exist, or a record is not a `tf.train.Example`.
    """
    files, inspection = list(_files(paths)), Inspection()  # a missing file is reported before TensorFlow is loaded
    tf = load_tensorflow("reading TFRecord files")
    for name, file in files:
        frames, damages = examine(tf, file)
        bad = {damage.record for damage in damages}
        good = [frame for number, frame in enumerate(frames) if number not in bad]
        inspection.files.append((name, len(good), os.path.getsize(file)))
        inspection.damages += [damage._replace(file=name) for damage in damages]
        for number, record in enumerate(_records(file, good[:look])):
            try:
                example = features(record)
            except BadFile as error:
                raise UsageError(f"record {number} {error}", key=_KEY, received=name) from error
            _inspect_example(inspection, example, examples, f"record {number} of {name!r}")
    return inspection


def _files(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the user's name of each file, and its local path."""
    for path in paths:
        if is_url(path):
            yield from _stored(path)
        else:
            yield from ((file, file) for file in record_files(path, _KEY))


def _stored(url: str) -> Iterable[tuple[str, str]]:
    """Fetches a file, the files of a glob, or those of a folder."""
    patterns = [url, *(f"{url.rstrip('/')}/*{suffix}" for suffix in RECORD_SUFFIXES)]
    paths = {name: path for pattern in patterns for name, path in local_files(pattern, _KEY).items()}
    if not paths:
        raise NoRecordFiles("there is no record file", key=_KEY, received=url)
    return sorted(paths.items())


def _records(file: str, frames: Sequence[Frame]) -> Iterator[bytes]:
    with open(file, "rb") as opened:
        for frame in frames:
            opened.seek(frame.data)
            yield opened.read(frame.length)


def differences(inspection: Inspection) -> Iterator[str]:
    """Yields a sentence for each feature that differs between the inspected records."""
    for name, feature in inspection.features.items():
        if len(feature.kinds) > 1:
            kinds = "; ".join(f"{kind} in {n}, first in {feature.first[kind]}" for kind, n in feature.kinds.items())
            yield f"{name!r} has several types, and a reader takes one: {kinds}"
        if feature.least != feature.most:
            yield f"{name!r} has {feature.least} to {feature.most} values: FixedLenFeature does not read it"
        if feature.records < inspection.inspected:
            missing = inspection.inspected - feature.records
            yield f"{name!r} is missing in {missing} of {inspection.inspected}: FixedLenFeature needs a default_value"


def _inspect_example(inspection: Inspection, example: Mapping[str, FeatureValues], examples: int, where: str) -> None:
    inspection.inspected += 1
    for name, (kind, values) in sorted(example.items()):
        _count(inspection.features.setdefault(name, Feature()), kind, values, where)
    if len(inspection.examples) < examples:
        inspection.examples.append({name: _show(values) for name, (_, values) in sorted(example.items())})


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
