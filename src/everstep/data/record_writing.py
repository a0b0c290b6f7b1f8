"""Dataset folders for `get_tfrecord_dataset`, written from arrays or from image files with a table of labels."""

import csv
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from everstep import storage
from everstep.data.examples import TfExampleBuilder, write_tfrecords
from everstep.data.record_arguments import whole_number
from everstep.data.record_files import SPLITS
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError, nearest

LABELS = "labels.txt"
_KINDS = {b"\xff\xd8\xff": "JPEG", b"\x89PNG": "PNG", b"GIF8": "GIF", b"BM": "BMP"}


class Written(NamedTuple):
    """What was written: the files, how many records, and the classes in their order."""

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
    int64, others float32, text bytes; more axes are laid in a row.

    Args:
      folder: The dataset's folder.
      split: `train` or `valid`.
      arrays: By name.
      shards: Number of files; records are dealt to them in turn.
      shuffle: Whether the records are shuffled before: readers mix only what their buffer holds, and data often comes
        class by class. False keeps the order.
      seed: Decides on the order; the same one always gives the same files.

    Raises:
      UsageError: The arrays do not fit together, or one cannot be stored.
    """
    sizes = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not sizes or len(set(sizes.values())) > 1 or not min(sizes.values()):
        listed = ", ".join(f"{name}: {size}" for name, size in sizes.items()) or "no array"
        raise UsageError(f"arrays need one length, at least 1, along their first axis; received {listed}")
    for name, array in arrays.items():
        if array.dtype.kind not in "biufSU":
            raise UsageError(f"array {name!r} has the type {array.dtype}, which records cannot hold")
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
    """Writes image files, as they are, with the labels of a CSV table whose columns are `file`, `label` and others.

    `file` is relative to `images`. Other columns become features: whole numbers int64, numbers float32, else text. A
    column `split` says which rows are meant: those of another split are left out.

    Args:
      folder: The dataset's folder.
      split: `train` or `valid`.
      images: The folder of the images.
      table: The CSV file.
      shards: Number of files; records are dealt to them in turn.
      shuffle: Whether the records are shuffled before; see `write_arrays`.
      seed: Decides on the order.

    Raises:
      UsageError: The table or an image cannot be used; names the line.
    """
    rows = [row for row in _table(Path(table)) if row.values.get("split", split) == split]
    if not rows:
        raise UsageError(f"{os.fspath(table)!r} has no row of the split {split!r}")
    kinds = _kinds(rows)
    features = (_image_row(Path(images), rows[number], kinds) for number in _order(len(rows), shuffle, seed))
    return _write(folder, split, features, [row.values["label"].strip() for row in rows], shards)


def _order(count: int, shuffle: bool, seed: int) -> Iterable[int]:
    """Returns the numbers of the rows as they are to be written; NumPy's own permutation may change with its version.

    Each row is drawn a number that follows from the seed alone, and the rows are sorted by it.
    """
    seed = whole_number("seed", seed, 0)
    if not shuffle:
        return range(count)
    drawn = np.random.PCG64(seed).random_raw(count)
    return [int(row) for row in np.argsort(drawn, kind="stable")]


class _Row(NamedTuple):
    where: str
    values: dict[str, str]


def _table(path: Path) -> list[_Row]:
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            missing = [name for name in ("file", "label") if name not in (reader.fieldnames or ())]
            rows = [_Row(f"{str(path)!r}, line {reader.line_num}", row) for row in reader]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{str(path)!r} cannot be read as a CSV table: {error}") from error
    if "image" in (reader.fieldnames or ()):
        raise UsageError(
            f"{str(path)!r} has a column 'image', the name under which the image itself is written: rename it"
        )
    if missing:
        raise UsageError(f"{str(path)!r} has no column {missing[0]!r}: its first line names them, as in file,label")
    for row in rows:
        if None in row.values or None in row.values.values() or not row.values["label"].strip():
            raise UsageError(f"{row.where}: expected a value in each column, received {list(row.values.values())}")
    return rows


def _image_row(images: Path, row: _Row, kinds: Mapping[str, Any]) -> dict[str, Any]:
    path = images / row.values["file"]
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{row.where}: {str(path)!r} cannot be read: {error.strerror}") from error
    if image_kind(data) is None:
        raise UsageError(f"{row.where}: {str(path)!r} is no JPEG, PNG, GIF or BMP image")
    others = {name: kind(row.values[name]) for name, kind in kinds.items()}
    return {"image": data, "label": row.values["label"].strip(), **others}


def image_kind(data: bytes) -> str | None:
    """Returns which kind of image file bytes are, None for none that TensorFlow decodes."""
    return next((kind for start, kind in _KINDS.items() if data.startswith(start)), None)


def _write(
    folder: storage.PathLike,
    split: str,
    rows: Iterator[dict[str, Any]],
    texts: Sequence[str],
    shards: int,
    numeric: bool = False,
) -> Written:
    if split not in SPLITS:
        raise UsageError(f"split: received {split!r}; {nearest(split, SPLITS)}")
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
    """Refuses to write beside record files of the split that a reader would read along."""
    new = {f"{split}-{number:05d}-of-{shards:05d}.tfrec" for number in range(shards)}
    others = sorted(path.name for path in folder.glob(f"{split}-*.tfrec") if path.name not in new)
    if others:
        raise UsageError(
            f"{str(folder / others[0])!r} and {len(others) - 1} more {split} files are there, and would be read along: "
            "remove them, or write to another folder"
        )


def _labels(folder: Path, texts: Sequence[str], numeric: bool) -> list[str]:
    """Returns the classes: those that the folder has already, which must be enough, else those there are."""
    odd = next((text for text in texts if text != text.strip() or len(text.splitlines()) != 1), None)
    if odd is not None:
        raise UsageError(f"label: received {odd!r}; a class is a line of {LABELS}: not empty, no space at its ends")
    path = folder / LABELS
    if not path.is_file() or not texts:
        return sorted(set(texts), key=int) if numeric else sorted(set(texts))
    known = [line.strip() for line in path.read_text("utf-8").splitlines() if line.strip()]
    unknown = sorted(set(texts) - set(known))
    if unknown:
        raise UsageError(
            f"the label {unknown[0]!r} ({len(unknown)} such) is not in {str(path)!r}, which other records here go by: "
            "correct it, add it there, or write to another folder"
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
    """A column whose values are made when they are written."""

    def __init__(self, make: Any) -> None:
        self._make = make

    def __getitem__(self, row: int) -> Any:
        return self._make(row)


def _text(value: Any) -> str:
    if np.ndim(value):
        raise UsageError(f"array 'label' has {np.size(value)} values per sample, expected one")
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _kinds(rows: Sequence[_Row]) -> dict[str, Any]:
    """Returns what the further columns are, each as a whole: a feature has one type in all records."""
    names = [name for name in rows[0].values if name not in ("file", "label", "split")]
    return {name: _kind([row.values[name].strip() for row in rows]) for name in names}


def _kind(texts: Sequence[str]) -> Any:
    """Returns int, float or str: a number with leading zeros, as of a badge, is text."""
    if all(re.fullmatch(r"[+-]?(0|[1-9][0-9]{0,17})", text) for text in texts):
        return int
    if any(re.fullmatch(r"[+-]?0[0-9]+", text) for text in texts):
        return str
    try:
        return float if all(math.isfinite(float(text)) and "_" not in text for text in texts) else str
    except ValueError:
        return str
