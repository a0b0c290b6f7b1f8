"""What is in TFRecord files: how many records, which features, and what is damaged."""

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from everstep.data.record_files import NoRecordFiles
from everstep.data.record_frames import Frame
from everstep.data.record_salvage import Damage, examined
from everstep.data.record_writing import image_kind
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError
from everstep.remote.data import local_files
from everstep.remote.urls import is_url
from everstep.storage import is_temporary

_SHOWN = 60
_ENDINGS = (".tfrec", ".tfrecord")


@dataclasses.dataclass
class Feature:
    """A feature of examples.

    Attributes:
      kinds: How many examples have it as `bytes`, `int64` or `float`.
      first: Of each of those the first record, in words.
      least: The smallest number of values in one.
      most: The largest.
      images: Of what kinds of image files its values are.
    """

    kinds: dict[str, int] = dataclasses.field(default_factory=dict)
    first: dict[str, str] = dataclasses.field(default_factory=dict)
    least: int | None = None
    most: int = 0
    images: set[str] = dataclasses.field(default_factory=set)

    @property
    def kind(self) -> str:
        """What it is in most examples."""
        return max(self.kinds, key=self.kinds.__getitem__)

    @property
    def records(self) -> int:
        """How many examples have it."""
        return sum(self.kinds.values())


@dataclasses.dataclass
class Inspection:
    """What was found.

    Attributes:
      files: Each with its number of whole records and its size in bytes.
      features: By name, of the records that were looked into.
      looked: How many those are.
      examples: The first records in words.
      damages: The places that cannot be read.
    """

    files: list[tuple[str, int, int]] = dataclasses.field(default_factory=list)
    features: dict[str, Feature] = dataclasses.field(default_factory=dict)
    looked: int = 0
    examples: list[dict[str, str]] = dataclasses.field(default_factory=list)
    damages: list[Damage] = dataclasses.field(default_factory=list)


def inspect(paths: Sequence[str], examples: int = 3, look: int = 1000) -> Inspection:
    """Reads record files to their ends, and says what is in them.

    Args:
      paths: Files, or folders of files `*.tfrec` and `*.tfrecord`, or URLs of those.
      examples: How many of the first records to show.
      look: Into how many records of each file to look for features.

    Raises:
      UsageError: There is no such file, or a record is no `tf.train.Example`.
    """
    files, found = list(_files(paths)), Inspection()  # what is not there is said before TensorFlow is loaded
    tf = load_tensorflow("reading TFRecord files")
    for name, file in files:
        frames, damages = examined(tf, file)
        bad = {damage.record for damage in damages}
        good = [frame for number, frame in enumerate(frames) if number not in bad]
        found.files.append((name, len(good), os.path.getsize(file)))
        found.damages += [damage._replace(file=name) for damage in damages]
        for number, record in enumerate(_records(file, good[:look])):
            _look(found, _example(tf, name, number, record), examples, f"record {number} of {name!r}")
    return found


def _files(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields the name by which the user knows a file, and its path on this machine."""
    for path in paths:
        if is_url(path):
            yield from _stored(path)
        elif os.path.isdir(path):
            inside = [p for p in sorted(Path(path).iterdir()) if p.suffix in _ENDINGS]
            names = [str(p) for p in inside if not is_temporary(p)]
            if not names:
                raise NoRecordFiles(f"{path!r} has no file *.tfrec or *.tfrecord")
            yield from zip(names, names, strict=True)
        elif os.path.isfile(path):
            yield path, path
        else:
            raise NoRecordFiles(f"there is no file or folder {path!r}")


def _stored(url: str) -> Iterable[tuple[str, str]]:
    """Fetches a file, the files of a glob, or those of a folder."""
    tried = [url, *(f"{url.rstrip('/')}/*{ending}" for ending in _ENDINGS)]
    found = {name: path for pattern in tried for name, path in local_files(pattern, "PATH").items()}
    if not found:
        raise NoRecordFiles(f"there is no record file at {url!r}")
    return sorted(found.items())


def _records(file: str, frames: Sequence[Frame]) -> Iterator[bytes]:
    with open(file, "rb") as opened:
        for frame in frames:
            opened.seek(frame.data)
            yield opened.read(frame.length)


def _example(tf: Any, file: str, number: int, record: bytes) -> Any:
    try:
        return tf.train.Example.FromString(record)
    except Exception as error:  # of the protocol buffers' own kind
        raise UsageError(f"record {number} of {file!r} is no tf.train.Example ({len(record)} bytes)") from error


def differences(found: Inspection) -> Iterator[str]:
    """Yields, in words, which features are not the same in all records that were looked into."""
    for name, feature in found.features.items():
        if len(feature.kinds) > 1:
            kinds = "; ".join(f"{kind} in {n}, first in {feature.first[kind]}" for kind, n in feature.kinds.items())
            yield f"{name!r} has several types, and a reader takes one: {kinds}"
        if feature.least != feature.most:
            yield f"{name!r} has {feature.least} to {feature.most} values: FixedLenFeature does not read it"
        if feature.records < found.looked:
            missing = found.looked - feature.records
            yield f"{name!r} is missing in {missing} of {found.looked}: FixedLenFeature needs a default_value"


def _look(found: Inspection, example: Any, examples: int, where: str) -> None:
    found.looked += 1
    shown = {}
    for name in sorted(example.features.feature):
        held = example.features.feature[name]
        kind = held.WhichOneof("kind")
        if kind is None:  # a reader takes it for one that is not there
            continue
        values = list(getattr(held, kind).value)
        _count(found.features.setdefault(name, Feature()), kind.removesuffix("_list"), values, where)
        shown[name] = _words(values)
    if len(found.examples) < examples:
        found.examples.append(shown)


def _count(feature: Feature, kind: str, values: list[Any], where: str) -> None:
    feature.kinds[kind] = feature.kinds.get(kind, 0) + 1
    feature.first.setdefault(kind, where)
    feature.most = max(feature.most, len(values))
    feature.least = len(values) if feature.least is None else min(feature.least, len(values))
    feature.images |= {image for v in values[:1] if isinstance(v, bytes) and (image := image_kind(v))}


def _words(values: list[Any]) -> str:
    """Returns values as a person wants to see them."""
    if len(values) == 1 and isinstance(values[0], bytes):
        if kind := image_kind(values[0]):
            return f"{kind} image, {len(values[0])} bytes"
        text = values[0].decode("utf-8", "replace")
        return repr(text) if len(text) <= _SHOWN and text.isprintable() else f"{len(values[0])} bytes"
    text = str(values[0] if len(values) == 1 else values)
    return text if len(text) <= _SHOWN else f"{len(values)} values: {text[: _SHOWN - 1]}…"
