"""Writes TFRecord files of `tf.train.Example`s."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from everstep.data.tf_data import load_tensorflow
from everstep.data.tfrecord.sources import check_compression
from everstep.errors import UsageError


class TfExampleBuilder:
    """Builds a `tf.train.Example` feature by feature; needs TensorFlow, on every backend.

        example = TfExampleBuilder().add_bytes_feature("name", "cat").add_ints_feature("size", [3, 4]).example

    A value is one number or text, or several in a list, a tuple or an array. Arrays are flattened: the reader has to
    know their shape.
    """

    def __init__(self) -> None:
        self._train = load_tensorflow("writing examples").train
        self._example = self._train.Example()

    @property
    def example(self) -> Any:
        """The example as built so far."""
        return self._example

    @property
    def serialized_example(self) -> bytes:
        """The serialised example; the same features always give the same bytes."""
        return bytes(self._example.SerializeToString(deterministic=True))

    def set(self, example: Any) -> Self:
        """Continues from a copy of another example."""
        self._example = self._train.Example()
        self._example.CopyFrom(example)
        return self

    def reset(self) -> Self:
        """Starts again with an empty example; examples returned earlier do not change."""
        self._example = self._train.Example()
        return self

    def add_feature_dict(self, feature_dict: Mapping[str, Any]) -> Self:
        """Sets ready-made features by their keys."""
        for key, feature in feature_dict.items():
            self.add_feature(key, feature)
        return self

    def add_feature(self, key: str, feature: Any) -> Self:
        """Sets a ready-made `tf.train.Feature`."""
        self._example.features.feature[key].CopyFrom(feature)
        return self

    def add_bytes_feature(self, key: str, value: Any) -> Self:
        """Sets bytes or text, one or several; text is stored as UTF-8."""
        values = [item.encode() if isinstance(item, str) else item for item in _values(value)]
        return self._add(key, value, lambda: self._train.Feature(bytes_list=self._train.BytesList(value=values)))

    def add_ints_feature(self, key: str, value: Any) -> Self:
        """Sets whole numbers, one or several."""
        return self._add(
            key, value, lambda: self._train.Feature(int64_list=self._train.Int64List(value=_values(value)))
        )

    def add_floats_feature(self, key: str, value: Any) -> Self:
        """Sets numbers, one or several, stored as float32."""
        return self._add(
            key, value, lambda: self._train.Feature(float_list=self._train.FloatList(value=_values(value)))
        )

    def _add(self, key: str, value: Any, make: Any) -> Self:
        try:
            return self.add_feature(key, make())
        except (TypeError, ValueError) as error:
            reason = f"a feature of this type cannot hold a {type(value).__name__}: {error}"
            raise UsageError(reason, key=key, received=value) from error


@dataclasses.dataclass
class TfExampleFeatureKeyBase:
    """Names of features that belong together, with a prefix if an example has several such groups.

        class ImageKey(TfExampleFeatureKeyBase):
            encoded: str = "image/encoded"
            height: str = "image/height"

        ImageKey().encoded         # 'image/encoded'
        ImageKey("left").encoded   # 'left/image/encoded'

    A subclass may be a dataclass itself.

    Args:
      prefix: A prefix of every name, separated by a slash; None or empty for no prefix.
    """

    prefix: dataclasses.InitVar[str | None] = None

    def __post_init__(self, prefix: str | None) -> None:  # type: ignore[override]  # of an argument that is no field
        names = [name for base in reversed(type(self).__mro__) for name in base.__dict__.get("__annotations__", {})]
        for name in names:
            if name != "prefix":
                key = getattr(self, name)
                setattr(self, name, f"{prefix}/{key}" if prefix else key)


def write_tfrecords(
    path: str | os.PathLike[str], examples: Iterable[Any], compression: str = "", shards: int = 1
) -> list[str]:
    """Writes examples to TFRecord files; each file appears when it is complete.

        files = write_tfrecords("data/train.tfrecord", examples, shards=4)
        # data/train-00000-of-00004.tfrecord … data/train-00003-of-00004.tfrecord

    Files are written as drafts, `.everstep-…`, which readers ignore, and renamed one by one after the last example.
    Existing shards of the same number are replaced: if the process is killed while renaming, new and old shards are
    mixed, and it has to be run again.

    Args:
      path: The file; with several shards, the pattern of their names.
      examples: Examples, builders of them, or serialised records; read once, distributed to the shards in turn.
      compression: `""`, `"GZIP"` or `"ZLIB"`.
      shards: Number of files.

    Returns:
      The files written, in order.

    Raises:
      UsageError: There are fewer examples than shards, one is not an example, the compression is unknown, or shards
        of another number exist, which a reader would read as well.
    """
    tf = load_tensorflow("writing TFRecord files")
    check_compression(compression)
    if shards < 1:
        raise UsageError("must be at least 1", key="shards", received=shards)
    files = _shard_names(os.fspath(path), shards)
    _refuse_leftovers(tf, os.fspath(path), files)
    with _drafts(tf, files) as drafts:
        _write_records(tf, drafts, map(_serialised, examples), compression)
    return files


def _write_records(tf: Any, drafts: list[str], records: Iterator[bytes], compression: str) -> None:
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(draft, compression)) for draft in drafts]
        count = 0
        for writer, record in zip(itertools.cycle(writers), records, strict=False):
            writer.write(record)
            count += 1
    if count < len(drafts):
        raise UsageError(
            f"but there are {count} examples; an empty record file could not be read",
            key="shards",
            received=len(drafts),
            remedy=f"use at most {max(count, 1)}",
        )


@contextlib.contextmanager
def _drafts(tf: Any, files: list[str]) -> Iterator[list[str]]:
    """Yields the names of drafts; renames them to `files` at the end, or removes them if the block fails."""
    drafts = [_draft(file) for file in files]
    if folder := files[0].rpartition("/")[0]:
        tf.io.gfile.makedirs(folder)
    try:
        yield drafts
        for draft, file in zip(drafts, files, strict=True):
            tf.io.gfile.rename(draft, file, overwrite=True)
    except BaseException:
        for draft in filter(tf.io.gfile.exists, drafts):
            tf.io.gfile.remove(draft)
        raise


def _draft(file: str) -> str:
    """Returns the name of a file until it is complete: always the same, so that the next attempt overwrites it."""
    folder, slash, name = file.rpartition("/")
    return f"{folder}{slash}.everstep-{name}"


def _shard_names(path: str, shards: int) -> list[str]:
    stem, dot, suffix = _split(path)
    return [path] if shards == 1 else [f"{stem}-{index:05d}-of-{shards:05d}{dot}{suffix}" for index in range(shards)]


def _refuse_leftovers(tf: Any, path: str, files: list[str]) -> None:
    stem, dot, suffix = _split(path)
    digits = "[0-9]" * 5
    others = sorted(set(tf.io.gfile.glob(f"{stem}-{digits}-of-{digits}{dot}{suffix}")) - set(files))
    if others:
        raise UsageError(
            f"and {len(others) - 1} more were written earlier",
            key="path",
            received=others[0],
            remedy="remove them first",
        )


def _split(path: str) -> tuple[str, str, str]:
    """Returns the path up to the file name's first dot, the dot, and what follows."""
    folder, slash, name = path.rpartition("/")
    stem, dot, suffix = name.partition(".")
    return folder + slash + stem, dot, suffix


def _serialised(example: Any) -> bytes:
    if isinstance(example, bytes):
        return example
    if isinstance(example, TfExampleBuilder):
        return example.serialized_example
    if not hasattr(example, "SerializeToString"):
        raise UsageError("expected a tf.train.Example, a builder of one, or bytes", key="examples", received=example)
    return bytes(example.SerializeToString(deterministic=True))


def _values(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        return [value]
    return list(value.ravel().tolist()) if isinstance(value, np.ndarray) else list(value)
