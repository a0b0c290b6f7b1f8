"""Writing TFRecord files of `tf.train.Example`s, and names for the features in them."""

import contextlib
import dataclasses
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import numpy as np

from everstep.data.files import COMPRESSIONS
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError


class TfExampleBuilder:
    """Builds a `tf.train.Example` feature by feature; needs TensorFlow, on every backend.

        example = TfExampleBuilder().add_bytes_feature("name", "cat").add_ints_feature("size", [3, 4]).example

    A value is one number or text, or several in a list, a tuple or an array. An array is flattened: its shape is for
    the reader to know.
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
        """The example as a record holds it; the same features always give the same bytes."""
        return bytes(self._example.SerializeToString(deterministic=True))

    def set(self, example: Any) -> Self:
        """Goes on from a copy of another example."""
        self._example = self._train.Example()
        self._example.CopyFrom(example)
        return self

    def reset(self) -> Self:
        """Starts again with an empty example; those handed out before stay as they are."""
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
        values = [item.encode() if isinstance(item, str) else item for item in _listed(value)]
        return self._add(key, value, lambda: self._train.Feature(bytes_list=self._train.BytesList(value=values)))

    def add_ints_feature(self, key: str, value: Any) -> Self:
        """Sets whole numbers, one or several."""
        return self._add(
            key, value, lambda: self._train.Feature(int64_list=self._train.Int64List(value=_listed(value)))
        )

    def add_floats_feature(self, key: str, value: Any) -> Self:
        """Sets numbers, one or several, stored as float32."""
        return self._add(
            key, value, lambda: self._train.Feature(float_list=self._train.FloatList(value=_listed(value)))
        )

    def _add(self, key: str, value: Any, make: Any) -> Self:
        try:
            return self.add_feature(key, make())
        except (TypeError, ValueError) as error:
            raise UsageError(f"feature {key!r} cannot hold {_shown(value)}: {error}") from error


@dataclasses.dataclass
class TfExampleFeatureKeyBase:
    """Names of features that belong together, with a prefix where an example has several such groups.

        class ImageKey(TfExampleFeatureKeyBase):
            encoded: str = "image/encoded"
            height: str = "image/height"

        ImageKey().encoded         # 'image/encoded'
        ImageKey("left").encoded   # 'left/image/encoded'

    A subclass may be a dataclass, too, and need not.

    Args:
      prefix: Put before every name, with a slash; None or empty for none.
    """

    prefix: dataclasses.InitVar[str | None] = None

    def __post_init__(self, prefix: str | None) -> None:
        names = [name for base in reversed(type(self).__mro__) for name in base.__dict__.get("__annotations__", {})]
        for name in names:
            if name != "prefix":
                key = getattr(self, name)
                setattr(self, name, f"{prefix}/{key}" if prefix else key)


def write_tfrecords(
    path: str | os.PathLike[str], examples: Iterable[Any], compression: str = "", shards: int = 1
) -> list[str]:
    """Writes examples to TFRecord files, each of which is there as a whole or not at all.

        files = write_tfrecords("data/train.tfrecord", examples, shards=4)
        # data/train-00000-of-00004.tfrecord … data/train-00003-of-00004.tfrecord

    All are written as drafts, `.everstep-…`, which no reader takes for data; only when the last example is in do they
    get their names, one after the other. Shards of the same number that were there are replaced in that moment: a
    process that is killed in it leaves new ones beside old ones, and has to be run again.

    Args:
      path: The file; with several shards, what their names are made from.
      examples: Examples, builders of them, or serialised records; read once, dealt to the shards in turn.
      compression: `""`, `"GZIP"` or `"ZLIB"`.
      shards: Number of files.

    Returns:
      The files written, in order.

    Raises:
      UsageError: There are fewer examples than shards, one is no example, the compression is not known, or shards
        of an earlier writing, of another number, are there and would be read along.
    """
    tf = load_tensorflow("writing TFRecord files")
    if compression not in COMPRESSIONS or shards < 1:
        known = ", ".join(repr(name) for name in COMPRESSIONS)
        raise UsageError(f"received compression={compression!r}, shards={shards}; known: {known}, and at least 1 shard")
    files = _shard_names(os.fspath(path), shards)
    _refuse_leftovers(tf, os.fspath(path), files)
    with _complete_or_gone(tf, files) as drafts:
        _write(tf, drafts, map(_serialised, examples), compression)
    return files


def _write(tf: Any, drafts: list[str], records: Iterator[bytes], compression: str) -> None:
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(tf.io.TFRecordWriter(draft, compression)) for draft in drafts]
        count = 0
        for writer, record in zip(itertools.cycle(writers), records, strict=False):
            writer.write(record)
            count += 1
    if count < len(drafts):
        raise UsageError(f"received {count} examples for {len(drafts)} files; an empty record file could not be read")


@contextlib.contextmanager
def _complete_or_gone(tf: Any, files: list[str]) -> Iterator[list[str]]:
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
    """Returns what a file is called until it is complete: always the same, so that the next writing takes its place."""
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
        raise UsageError(f"{others[0]!r} and {len(others) - 1} more are of an earlier writing: remove them first")


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
        raise UsageError(f"received {_shown(example)}; expected a tf.train.Example, a builder of one, or bytes")
    return bytes(example.SerializeToString(deterministic=True))


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes)) or not hasattr(value, "__len__"):
        return [value]
    return list(value.ravel().tolist()) if isinstance(value, np.ndarray) else list(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{text if len(text) < 60 else text[:57] + '...'} ({type(value).__name__})"
