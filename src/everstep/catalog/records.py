"""TFRecord files of `tf.train.Example`s, as arrays. They need the package TensorFlow, on every backend.

Data that does not fit into memory is read batch by batch instead: `get_tfrecord_dataset(catalog.path(name), …)`.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.catalog.dataset import Dataset
from everstep.config.problem import show
from everstep.data.examples import TfExampleBuilder, write_tfrecords
from everstep.data.files import read_records
from everstep.data.tf_data import load_tensorflow
from everstep.errors import UsageError, nearest
from everstep.storage import is_temporary

_TYPES = {"int64_list": np.int64, "float_list": np.float32, "bytes_list": object}


class TfRecord(Dataset):
    """Features by name, each an array whose first axis is the records; a file, or a folder of such files.

    Whole numbers are int64, others float32, text is bytes. Records hold rows without a shape: `shapes` in
    `load_args` gives it back.
    """

    suffixes = (".tfrecord", ".tfrec")

    def load(
        self,
        path: Path,
        *,
        features: Sequence[str] | None = None,
        shapes: Mapping[str, Sequence[int]] | None = None,
        compression: str = "",
    ) -> dict[str, np.ndarray]:
        """Returns the features, or those that are named.

        Args:
          path: A file, or a folder.
          features: The names to read.
          shapes: Of one record's values, by feature: `{image: [28, 28, 1]}`.
          compression: `GZIP` or `ZLIB`.
        """
        tf = load_tensorflow("reading TFRecord files")
        read = read_records(compression)
        records = (record for file in _files(path) for record in read(str(file)).as_numpy_iterator())
        columns = _columns((tf.train.Example.FromString(record) for record in records), features)
        return {name: _shaped(name, column, (shapes or {}).get(name)) for name, column in columns.items()}

    def save(self, value: Any, path: Path, *, compression: str = "") -> None:
        """Writes arrays by name, whose first axis is the records."""
        write_tfrecords(path, _examples(value), compression)


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    files = [file for file in sorted(path.iterdir()) if file.suffix in TfRecord.suffixes and not is_temporary(file)]
    if not files:
        raise UsageError("the folder has no file *.tfrecord or *.tfrec")
    return files


def _columns(examples: Iterable[Any], features: Sequence[str] | None) -> dict[str, np.ndarray]:
    rows = [_row(example, features) for example in examples]
    if not rows:
        raise UsageError("there is no record in it")
    for number, row in enumerate(rows):
        if set(row) != set(rows[0]):
            odd = sorted(set(row) ^ set(rows[0]))[0]
            raise UsageError(f"not every record has the feature {odd!r} (see record {number}): name others in features")
    return {name: _stacked(name, [row[name] for row in rows]) for name in rows[0]}


def _row(example: Any, features: Sequence[str] | None) -> dict[str, np.ndarray]:
    held = example.features.feature
    row = {}
    for name in sorted(held) if features is None else features:
        if name not in held:
            raise UsageError(f"load_args.features: a record has no {name!r}; {nearest(str(name), held)}")
        kind = held[name].WhichOneof("kind") or "bytes_list"
        row[name] = np.array(getattr(held[name], kind).value, dtype=_TYPES[kind])
    return row


def _stacked(name: str, values: list[np.ndarray]) -> np.ndarray:
    lengths = {len(value) for value in values}
    if len(lengths) > 1 or len({value.dtype for value in values}) > 1:
        raise UsageError(
            f"the feature {name!r} has between {min(lengths)} and {max(lengths)} values, or several types: "
            "leave it out of load_args.features, or read the records with get_tfrecord_dataset"
        )
    column = np.stack(values)
    return column[:, 0] if lengths == {1} else column


def _shaped(name: str, column: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    if shape is None:
        return column
    try:
        return column.reshape(len(column), *shape)
    except (ValueError, TypeError):
        held = column.shape[1:] or (1,)
        raise UsageError(f"load_args.shapes: {name!r} has {held} values per record, received {show(shape)}") from None


def _examples(value: Any) -> Iterator[TfExampleBuilder]:
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise UsageError(f"expected arrays by name, received {show(value)}")
    columns = {name: _flat(name, np.asarray(column)) for name, column in value.items()}
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise UsageError(f"arrays need one length along their first axis, received {sizes}")
    for number in range(next(iter(sizes.values()))):
        builder = TfExampleBuilder()
        for name, column in columns.items():
            _add(builder, name, column[number])
        yield builder


def _flat(name: str, column: np.ndarray) -> np.ndarray:
    if not column.ndim or column.dtype.kind not in "biufSUO":
        raise UsageError(f"{name!r} must be an array of numbers or text, received {column.dtype} {column.shape}")
    rows = column.reshape(len(column), -1) if column.size else column.reshape(len(column), 0)
    return rows.astype(np.int64) if column.dtype.kind in "b" else rows


def _add(builder: TfExampleBuilder, name: str, values: np.ndarray) -> None:
    add = {"f": builder.add_floats_feature, "i": builder.add_ints_feature, "u": builder.add_ints_feature}
    add.get(values.dtype.kind, builder.add_bytes_feature)(name, values)
