"""Writes folders of TFRecord files, with their `labels.txt`, from arrays or image files."""

import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everstep import storage
from everstep.data.arguments import whole_number
from everstep.data.formats.images import image_kind
from everstep.data.formats.tables import separator
from everstep.data.records.records import Row
from everstep.data.records.text_files import Csv
from everstep.data.tf_data import load_tensorflow
from everstep.data.tfrecord.folders import SPLITS
from everstep.data.tfrecord.writing import TfExampleBuilder, write_tfrecords
from everstep.errors import UsageError, nearest

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
