"""Writes TFRecord files: `tf.train.Example`s, and whole dataset folders from arrays or image files."""

import contextlib
import dataclasses
import itertools
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from everstep import storage
from everstep.data.arguments import whole_number
from everstep.data.formats.tables import separator
from everstep.data.record_sources import check_compression
from everstep.data.records.records import Row
from everstep.data.records.text_files import Csv
from everstep.data.tf_data import load_tensorflow
from everstep.data.tfrecord import SPLITS
from everstep.data.tfrecord_files import image_kind
from everstep.errors import UsageError, nearest


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


LABELS = "labels.txt"


class Written(NamedTuple):
    """What was written: the files, the number of records, and the classes in their order."""

    files: list[str]
    records: int
    labels: list[str]


def write_arrays(
    folder: storage.PathLike,
    split: str,
    arrays: Mapping[str, np.ndarray],
    shards: int = 1,
    *,
    shuffle: bool = True,
    seed: int = 0,
) -> Written:
    """Writes arrays whose first axis is the samples; each becomes a feature of its name.

    Images (uint8, with height, width and 1, 3 or 4 channels) become PNG files, `label` becomes text, whole numbers
    int64, others float32, text bytes; further axes are flattened.

    Args:
      folder: The dataset's folder.
      split: `train` or `valid`.
      arrays: The arrays by name.
      shards: Number of files; records are distributed to them in turn.
      shuffle: Whether the records are shuffled first: readers mix only what their buffer holds, and data is often
        sorted by class. False keeps the order.
      seed: Determines the order; the same seed always gives the same files.

    Raises:
      UsageError: The arrays have different lengths, or one cannot be stored.
    """
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not sizes or len(set(sizes.values())) > 1 or not min(sizes.values()):
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items()) or "no array"
        raise UsageError(f"need one length, at least 1, along their first axis, not {listed}", key="arrays")
    for name, array in arrays.items():
        if array.dtype.kind not in "biufSU":
            raise UsageError(f"has the type {array.dtype}, which records cannot hold", key=f"arrays[{name!r}]")
    texts = [_text(value) for value in arrays["label"]] if "label" in arrays else []
    columns = {name: _column(array, name) for name, array in arrays.items()}
    order = _order(min(sizes.values()), shuffle, seed)
    rows = ({name: column[row] for name, column in columns.items()} for row in order)
    return _write(folder, split, rows, texts, shards, numeric="label" in arrays and arrays["label"].dtype.kind in "iu")


def write_images(
    folder: storage.PathLike,
    split: str,
    images: storage.PathLike,
    table: storage.PathLike,
    shards: int = 1,
    *,
    shuffle: bool = True,
    seed: int = 0,
) -> Written:
    """Writes image files unchanged, with the labels of a CSV table whose columns are `file`, `label` and others.

    `file` is relative to `images`. Other columns become features: whole numbers int64, numbers float32, else text. A
    column `split` selects rows: those of another split are skipped.

    Args:
      folder: The dataset's folder.
      split: `train` or `valid`.
      images: The folder of the images.
      table: The CSV file.
      shards: Number of files; records are distributed to them in turn.
      shuffle: Whether the records are shuffled first; see `write_arrays`.
      seed: Determines the order.

    Raises:
      UsageError: The table or an image cannot be read; `origin` is the line of the table.
    """
    rows = _table(os.fspath(table))
    numbers = [number for number, row in enumerate(rows.read(range(len(rows)))) if row.get("split", split) == split]
    if not numbers:
        raise UsageError(f"has no row of the split {split!r}", key="table", received=os.fspath(table))
    values = rows.read(numbers)
    kinds = _kinds(values)
    features = (
        _image_row(Path(images), rows, numbers[place], values[place], kinds)
        for place in _order(len(numbers), shuffle, seed)
    )
    return _write(folder, split, features, [row["label"].strip() for row in values], shards)


def _order(count: int, shuffle: bool, seed: int) -> Iterable[int]:
    """Returns the numbers of the rows in the order of writing.

    Each row gets a random number that follows only from the seed, and the rows are sorted by it. NumPy's `permutation`
    may change with its version.
    """
    seed = whole_number("seed", seed, 0)
    if not shuffle:
        return range(count)
    drawn = np.random.PCG64(seed).random_raw(count)
    return [int(row) for row in np.argsort(drawn, kind="stable")]


def _table(path: str) -> Csv:
    """Returns the rows of a table of images; refuses one that lacks a value."""
    try:
        rows = Csv(path, "table", separator(path))
    except OSError as error:
        raise UsageError(f"cannot be read: {error.strerror}", key="table", received=path) from error
    if "image" in rows.columns:
        reason = "has a column 'image', the name under which the image itself is written"
        raise UsageError(reason, key="table", received=path, remedy="rename it")
    for name in ("file", "label"):
        if name not in rows.columns:
            remedy = "its first line names them, as in file,label"
            raise UsageError(f"has no column {name!r}", key="table", received=path, remedy=remedy)
    for number, row in enumerate(rows.read(range(len(rows)))):
        if not row["label"].strip():
            raise rows.error(number, "has no label", received=list(row.values()))
    return rows


def _image_row(images: Path, rows: Csv, number: int, row: Row, kinds: Mapping[str, Any]) -> dict[str, Any]:
    path = images / row["file"]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise rows.error(number, f"cannot be read: {error.strerror}", received=str(path)) from error
    if image_kind(data) is None:
        raise rows.error(number, "is not a JPEG, PNG, GIF or BMP image", received=str(path))
    others = {name: kind(row[name]) for name, kind in kinds.items()}
    return {"image": data, "label": row["label"].strip(), **others}


def _write(
    folder: storage.PathLike,
    split: str,
    rows: Iterator[dict[str, Any]],
    texts: Sequence[str],
    shards: int,
    numeric: bool = False,
) -> Written:
    if split not in SPLITS:
        raise UsageError("unknown split", key="split", received=split, remedy=nearest(split, SPLITS))
    target = Path(folder)
    storage.prepare_directory(target)
    labels = _labels(target, texts, numeric)
    name = f"{split}.tfrec" if shards > 1 else f"{split}-00000-of-00001.tfrec"
    _refuse_others(target, split, shards)
    count = 0

    def examples() -> Iterator[TfExampleBuilder]:
        nonlocal count
        for row in rows:
            count += 1
            yield _example(row)

    files = write_tfrecords(target / name, examples(), shards=shards)
    if labels:
        storage.write_text(target / LABELS, "".join(f"{label}\n" for label in labels))
    return Written(files, count, labels)


def _refuse_others(folder: Path, split: str, shards: int) -> None:
    """Refuses a folder with other record files of the split, which a reader would read as well."""
    new = {f"{split}-{number:05d}-of-{shards:05d}.tfrec" for number in range(shards)}
    others = sorted(path.name for path in folder.glob(f"{split}-*.tfrec") if path.name not in new)
    if others:
        raise UsageError(
            f"and {len(others) - 1} more {split} files exist, and would be read as well",
            key="folder",
            received=str(folder / others[0]),
            remedy="remove them, or write to another folder",
        )


def _labels(folder: Path, texts: Sequence[str], numeric: bool) -> list[str]:
    """Returns the classes: those of an existing labels.txt, which must include all labels, else those of the labels."""
    invalid = next((text for text in texts if text != text.strip() or len(text.splitlines()) != 1), None)
    if invalid is not None:
        reason = f"a class is a line of {LABELS}: not empty, no space at its ends"
        raise UsageError(reason, key="label", received=invalid)
    path = folder / LABELS
    if not path.is_file() or not texts:
        return sorted(set(texts), key=int) if numeric else sorted(set(texts))
    known = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    unknown = sorted(set(texts) - set(known))
    if unknown:
        raise UsageError(
            f"is not in {str(path)!r}, which other records here use ({len(unknown)} such labels)",
            key="label",
            received=unknown[0],
            remedy="correct it, add it there, or write to another folder",
        )
    return known


def _example(row: Mapping[str, Any]) -> TfExampleBuilder:
    builder = TfExampleBuilder()
    for name, value in row.items():
        kind = np.asarray(value).dtype.kind
        add = {"f": builder.add_floats_feature, "S": builder.add_bytes_feature, "U": builder.add_bytes_feature}
        add.get(kind, builder.add_ints_feature)(name, value)
    return builder


def _column(array: np.ndarray, name: str) -> Any:
    if array.dtype == np.uint8 and array.ndim == 4 and array.shape[-1] in (1, 3, 4):
        tf = load_tensorflow("writing images")
        return _Lazy(lambda row: tf.io.encode_png(array[row]).numpy())
    if name == "label":
        return _Lazy(lambda row: _text(array[row]))
    if array.dtype.kind == "U":
        return _Lazy(lambda row: [str(value) for value in np.ravel(array[row])])
    return array.astype(np.int64) if array.dtype.kind == "b" else array


class _Lazy:
    """A column whose values are computed when they are written."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __getitem__(self, row: int) -> Any:
        return self._make(row)


def _text(value: Any) -> str:
    if np.ndim(value):
        raise UsageError(f"has {np.size(value)} values per sample, expected one", key="arrays['label']")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _kinds(rows: Sequence[Row]) -> dict[str, Any]:
    """Returns the types of the other columns: a feature has one type in all records."""
    names = [name for name in rows[0] if name not in ("file", "label", "split")]
    return {name: _kind([row[name].strip() for row in rows]) for name in names}


def _kind(texts: Sequence[str]) -> Any:
    """Returns int, float or str; a number with leading zeros is text."""
    if all(re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,17})", text) for text in texts):
        return int
    if any(re.fullmatch(r"[+-]?0[0-9]+", text) for text in texts):
        return str
    try:
        return float if all(math.isfinite(float(text)) and "_" not in text for text in texts) else str
    except ValueError:
        return str
