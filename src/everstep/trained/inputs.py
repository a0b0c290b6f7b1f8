"""Data to predict on: arrays, `.npy` and `.npz` files, images, TFRecords and tables.

`open_input` picks the source by type or file name. Each source checks the data against the model's inputs before
anything is computed, and reads one batch at a time. None of them unpickles anything.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from PIL import Image

from everstep.checkpoint.remote import is_url, local_files
from everstep.data import host_array
from everstep.data.formats import (
    CSV_SUFFIXES,
    MODES,
    PARQUET_SUFFIXES,
    RECORD_SUFFIXES,
    SUFFIXES,
    BadFile,
    CsvOptions,
    FeatureValues,
    NumpyFile,
    StoredRows,
    as_bad_file,
    decode,
    open_csv,
    open_parquet,
    upright_size,
)
from everstep.data.tfrecord import read_columns, read_examples
from everstep.errors import NOTHING, UsageError

_KEY = "--input"

_VECTORIZE = (
    "pass the numbers that text becomes before it reaches the model, from Python: "
    "everstep.predict(RUN, vectorize(texts)); a model that begins with that layer takes text itself"
)
"""What to do with text where a model takes numbers."""

Rows = tuple[Sequence[Any], list[np.ndarray]]
"""A batch: the ids of its samples, and an array for each of the model's inputs."""


@contextlib.contextmanager
def _naming(path: Path, what: str = "cannot be read:") -> Iterator[None]:
    """Inside the block, the error of a reader becomes one that names the file."""
    try:
        yield
    except BadFile as error:
        raise UsageError(f"{what} {error}", key=_KEY, received=str(path)) from error


class InputSource(Protocol):
    """Data that fits a model; it is checked when it is opened.

    Attributes:
      count: The number of samples; None where it is known only at the end.
    """

    count: int | None

    def batches(self, size: int) -> Iterator[Rows]:
        """Yields all samples in order, at most `size` at a time."""


@dataclasses.dataclass(frozen=True)
class Spec:
    """One input of a model.

    Attributes:
      name: The input's name in the model.
      shape: The shape of one sample; None for an axis of any size.
      dtype: The type of the values, or `string`.
    """

    name: str
    shape: tuple[int | None, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join('any' if size is None else str(size) for size in self.shape)}]"

    @property
    def size(self) -> int | None:
        """The number of values in one sample; None if an axis may have any size."""
        return None if None in self.shape else int(np.prod([size or 0 for size in self.shape]))

    def cast(self, array: np.ndarray) -> np.ndarray:
        """Returns an array that passed `check` in the type that the model takes.

        Raises:
          UsageError: A value is NaN or infinite, or would overflow the model's type.
        """
        if self.dtype == "string":
            return array.astype(object)
        import ml_dtypes

        target = np.dtype(getattr(ml_dtypes, self.dtype, self.dtype))
        if not array.size:
            return np.asarray(array, target)
        is_number = array.dtype.kind in "biuf"  # others, such as bfloat16, are compared as float64
        if array.dtype.kind not in "biu" and not np.isfinite(array if is_number else array.astype(np.float64)).all():
            raise UsageError(
                f"a value for the model's input {self.name!r} is NaN or infinite", key=_KEY, remedy="remove the row"
            )
        if array.dtype.kind in "iu" and target.kind in "iu":
            low, high, limits = array.min(), array.max(), np.iinfo(target)
            if low < limits.min or high > limits.max:
                raise UsageError(
                    f"has values from {low} to {high}, but the model's input {self.name!r} takes {self}, from "
                    f"{limits.min} to {limits.max}",
                    key=_KEY,
                    remedy="convert them",
                )
        return np.asarray(array, target)


def check(spec: Spec, shape: Sequence[int], dtype: np.dtype, where: str) -> None:
    """Checks that data has the shape and kind that an input takes.

    Whole numbers are accepted where floats are expected, but not the other way round.

    Args:
      spec: The model's input.
      shape: The shape of one sample in the data.
      dtype: The type of the values in the data.
      where: A name for the data in the error message.

    Raises:
      UsageError: It does not fit.
    """
    same = len(shape) == len(spec.shape) and all(
        want is None or want == size for want, size in zip(spec.shape, shape, strict=True)
    )
    if dtype.kind in "SUTO" and spec.dtype != "string" and not shape:
        raise UsageError(
            f"{where} holds text, but the model's input {spec.name!r} takes {spec}", key=_KEY, remedy=_VECTORIZE
        )
    if not same or not _is_kind(spec, dtype):
        raise UsageError(
            f"{where} is {dtype.name}[{', '.join(map(str, shape))}] per sample, but the model's input {spec.name!r} "
            f"takes {spec}",
            key=_KEY,
            remedy=f"{'convert' if same else 'reshape'} it",
        )


def _is_kind(spec: Spec, dtype: np.dtype) -> bool:
    if spec.dtype == "string":
        return dtype.kind in "SUTO"
    if spec.dtype.startswith(("int", "uint", "bool")):
        return dtype.kind in "biu"
    return dtype.kind in "biuf" or dtype.name.startswith(("bfloat", "float"))


_IDS = ("id", "ids")
_USUAL_ARRAYS = ("x", "inputs", "data", "x_test")


class _NamedArrays:
    """A source of named arrays: one, or one for each input of the model by its name.

    Args:
      specs: The model's inputs.
      without: Names of arrays that are not inputs.
      unnamed: A name for the only array of a source without names, for error messages.
      received: The source as error messages show it.

    Raises:
      UsageError: The arrays cannot be read, or do not fit the model.
    """

    def __init__(self, specs: Sequence[Spec], without: Sequence[str], unnamed: str, received: Any) -> None:
        self._specs = list(specs)
        with self._open() as arrays:
            inputs = [spec.name for spec in specs]
            candidates = [name for name in arrays if name in inputs or name not in (*without, *_IDS)]
            self._names = _choose(candidates, specs, _USUAL_ARRAYS, received)
            ids = [name for name in _IDS if name in arrays and name not in self._names]
            self._ids = ids[0] if ids else None
            for spec, name in zip(specs, self._names, strict=True):
                check(spec, arrays[name].shape[1:], arrays[name].dtype, f"{name or unnamed!r}")
            lengths = {name: arrays[name].shape[0] for name in [*self._names, *ids]}
            if len(set(lengths.values())) > 1:
                listed = ", ".join(f"{name} {length}" for name, length in lengths.items())
                reason = f"its arrays have different numbers of rows: {listed}"
                raise UsageError(reason, key=_KEY, received=received)
            self.count: int | None = next(iter(lengths.values()))

    def batches(self, size: int) -> Iterator[Rows]:
        """Yields all rows in order, at most `size` at a time."""
        with self._open() as arrays:
            count = self.count or 0
            for start in range(0, count, size):
                many = min(size, count - start)
                rows = [spec.cast(arrays[name].take(many)) for spec, name in zip(self._specs, self._names, strict=True)]
                ids = arrays[self._ids].take(many).tolist() if self._ids else range(start, start + many)
                yield ids, rows

    def _open(self) -> contextlib.AbstractContextManager[Mapping[str, "StoredRows | _MemoryRows"]]:
        """Opens the arrays at their first rows, by name."""
        raise NotImplementedError


class ArrayFile(_NamedArrays):
    """Arrays in a `.npy` or `.npz` file, read row by row.

    Args:
      path: The file.
      specs: The model's inputs.
      without: Names of arrays that are not inputs.

    Raises:
      UsageError: The file cannot be read, or does not fit the model.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], without: Sequence[str] = ()) -> None:
        self._path = path
        super().__init__(specs, without, path.name, str(path))

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, StoredRows]]:
        with _naming(self._path), NumpyFile(self._path) as file:
            yield {name: file.rows(name) for name in file.names}


class MemoryArrays(_NamedArrays):
    """Arrays in memory, of NumPy or any backend.

    Args:
      data: An array; a list of arrays in the order of the model's inputs; or a mapping from names to arrays.
      specs: The model's inputs.
      without: Names of arrays that are not inputs.

    Raises:
      UsageError: The arrays do not fit the model.
    """

    def __init__(self, data: Any, specs: Sequence[Spec], without: Sequence[str] = ()) -> None:
        if isinstance(data, list | tuple) and len(data) == len(specs) > 1:
            data = {spec.name: array for spec, array in zip(specs, data, strict=True)}
        named = data if isinstance(data, Mapping) else {"": data}
        self._arrays = {str(name): host_array(array) for name, array in named.items()}
        if len(specs) == 1 and specs[0] == dataclasses.replace(specs[0], shape=(1,), dtype="string"):
            self._arrays = {name: array[:, None] if array.ndim == 1 else array for name, array in self._arrays.items()}
        if scalars := [name for name, array in self._arrays.items() if not array.ndim]:
            raise UsageError(
                f"{scalars[0] or 'the array'!r} has no axis for samples",
                key=_KEY,
                remedy="pass a path, an array with samples along its first axis, or a dict of such arrays",
            )
        super().__init__(specs, without, "the array", NOTHING)

    @contextlib.contextmanager
    def _open(self) -> Iterator[dict[str, "_MemoryRows"]]:
        yield {name: _MemoryRows(array) for name, array in self._arrays.items()}


class _MemoryRows:
    """An array in memory, row after row."""

    def __init__(self, array: np.ndarray) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self._array, self._next = array, 0

    def take(self, rows: int) -> np.ndarray:
        """Returns the next rows."""
        self._next += rows
        return self._array[self._next - rows : self._next]


def _choose(names: Sequence[str], specs: Sequence[Spec], usual: Sequence[str], received: Any) -> list[str]:
    """Returns the array or feature for each input: the one with the input's name, or the only possible one."""
    if all(spec.name in names for spec in specs):
        return [spec.name for spec in specs]
    possible = list(names) if len(names) == 1 else [name for name in usual if name in names]
    if len(specs) == 1 and possible:
        return possible[:1]
    raise UsageError(
        f"has {', '.join(names)}, but the model takes {', '.join(spec.name for spec in specs)}",
        key=_KEY,
        received=received,
        remedy="rename them, or skip others with --without NAME",
    )


class ImageFolder:
    """Images as numbers from 0 to 255; any other preprocessing belongs into the exported model.

    Args:
      path: A folder of images, or one image.
      specs: The model's inputs.
      resize: Whether to resize images of another size (bilinear); without it they are an error.

    Attributes:
      names: The paths of the images in the folder, which are their ids.

    Raises:
      UsageError: The model does not take images, the folder has none, or an image cannot be opened or has another
        size.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], resize: bool = False) -> None:
        if len(specs) != 1 or len(specs[0].shape) not in (2, 3) or specs[0].dtype == "string":
            taken = ", ".join(f"{spec.name} {spec}" for spec in specs)
            raise UsageError(f"contains images, but the model takes {taken}", key=_KEY, received=str(path))
        self._folder = path if path.is_dir() else path.parent
        self._spec, self._resize = specs[0], resize
        channels = self._spec.shape[2] if len(self._spec.shape) == 3 else 1
        if channels not in (None, *MODES):
            reason = f"the model takes {self._spec}, but images have 1, 3 or 4 channels, on the last axis"
            raise UsageError(reason, key=_KEY)
        self._channels = channels or 3
        self._files = [path]
        if path.is_dir():
            self._files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES and file.is_file())
        if not self._files:
            raise UsageError(f"contains no images ({', '.join(SUFFIXES)})", key=_KEY, received=str(path))
        self.names = [file.relative_to(self._folder).as_posix() for file in self._files]
        self.count: int | None = len(self._files)
        for file in self._files:
            self._check(file)

    def batches(self, size: int) -> Iterator[Rows]:
        """Yields all images in order of their paths, at most `size` at a time; one at a time if sizes may differ."""
        size = 1 if None in self._spec.shape[:2] and not self._resize else size
        for start in range(0, len(self._files), size):
            some = self._files[start : start + size]
            arrays = np.stack([self._pixels(path) for path in some])
            yield self.names[start : start + size], [self._spec.cast(arrays)]

    def _check(self, path: Path) -> None:
        with _naming(path, "the image"):
            width, height = upright_size(path)
        fits = all(want in (None, size) for want, size in zip(self._spec.shape, (height, width), strict=False))
        if not fits and not self._resize:
            raise UsageError(
                f"the image is {height}x{width}, but the model takes {self._spec}",
                key=_KEY,
                received=str(path),
                remedy="scale it, or pass --resize",
            )

    def _pixels(self, path: Path) -> np.ndarray:
        with _naming(path, "the image"):
            pixels = decode(_content(path), self._channels)
        height, width = self._spec.shape[:2]
        if self._resize and height and width and pixels.size != (width, height):
            pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
        array = np.asarray(pixels)
        return array[..., None] if len(self._spec.shape) == 3 and array.ndim == 2 else array


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadFile(f"cannot be read: {error.strerror}") from error


_USUAL_FEATURES = ("x", "inputs", "image", "image/encoded", "image_raw")
_RECORD_ID = "id"
_TYPES = {"float": "float32", "int64": "int64", "bytes": "string"}


class RecordFiles:
    """Examples in a TFRecord file; their features are taken from the first one.

    Args:
      path: The file.
      specs: The model's inputs.
      without: Names of features that are not inputs.

    Raises:
      UsageError: The file cannot be read, or does not fit the model.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], without: Sequence[str] = ()) -> None:
        self._path, self._specs = path, list(specs)
        self.count: int | None = None
        first = next(read_examples(str(path), key=_KEY), None)
        if first is None:
            raise UsageError("contains no records", key=_KEY, received=str(path))
        candidates = sorted(name for name in first if name not in (*without, _RECORD_ID))
        self._names = _choose(candidates, specs, _USUAL_FEATURES, str(path))
        self._columns = {
            name: self._column(spec, name, first[name]) for spec, name in zip(specs, self._names, strict=True)
        }
        self._has_id = _RECORD_ID in first and _RECORD_ID not in [spec.name for spec in specs]
        if self._has_id:
            self._columns[_RECORD_ID] = first[_RECORD_ID].kind, ()

    def batches(self, size: int) -> Iterator[Rows]:
        """Yields all examples in order, at most `size` at a time."""
        done = 0
        for columns in read_columns(str(self._path), self._columns, size, _KEY):
            arrays = [self._array(spec, columns[name]) for spec, name in zip(self._specs, self._names, strict=True)]
            ids: Sequence[Any] = range(done, done + len(arrays[0]))
            if self._has_id:
                given = columns[_RECORD_ID].tolist()
                ids = [value.decode() if isinstance(value, bytes) else value for value in given]
            done += len(arrays[0])
            yield ids, arrays

    def _column(self, spec: Spec, name: str, feature: FeatureValues) -> tuple[str, Sequence[int]]:
        """Returns the kind and the shape of a feature; refuses one that does not fit the model's input."""
        kind, count = feature.kind, len(feature.values)
        is_image = kind == "bytes" and spec.dtype != "string" and len(spec.shape) == 3
        if is_image and spec.shape[2] in (None, *MODES) and count == 1:
            return kind, ()
        is_text, is_whole = spec.dtype == "string", spec.dtype.startswith(("int", "uint", "bool"))
        fits = {"bytes": is_text, "int64": not is_text, "float": not is_text and not is_whole}
        if fits[kind] and spec.size == count:
            return kind, [size or 0 for size in spec.shape]
        raise UsageError(
            f"the feature {name!r} has {count} values of {_TYPES[kind]}, but the model's input {spec.name!r} "
            f"takes {spec}",
            key=_KEY,
            received=str(self._path),
        )

    def _array(self, spec: Spec, values: np.ndarray) -> np.ndarray:
        is_encoded = values.dtype == object and spec.dtype != "string"
        return self._decoded(spec, values.tolist()) if is_encoded else spec.cast(values)

    def _decoded(self, spec: Spec, encoded: Sequence[bytes]) -> np.ndarray:
        with _naming(self._path, "the image of a record"):
            pixels = [np.asarray(decode(data, spec.shape[2])) for data in encoded]
        images = [array[..., None] if array.ndim == 2 else array for array in pixels]
        misfits = [
            image for image in images if any(w not in (None, s) for w, s in zip(spec.shape, image.shape, strict=True))
        ]
        if misfits:
            raise UsageError(
                f"contains an image of {list(misfits[0].shape)}, but the model takes {spec}",
                key=_KEY,
                received=str(self._path),
            )
        return spec.cast(np.stack(images))


_TABLE_ID = "id"


class TableFile:
    """A table: a column for each input of the model by its name, or a column for each value of its only input.

    Args:
      path: A `.csv`, `.tsv` or Parquet file.
      specs: The model's inputs.
      without: Names of columns that are not inputs.

    Raises:
      UsageError: The file cannot be read, or does not fit the model.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], without: Sequence[str] = ()) -> None:
        self._path, self._specs = path, list(specs)
        with _naming(path):
            schema, self.count = self._schema()
        self._id = next((name for name in schema.names if name.lower() == _TABLE_ID), None)
        unknown = [name for name in without if name not in schema.names]
        if unknown:
            raise UsageError(
                f"{str(path)!r} has no such column, but {_brief(schema.names)}", key="--without", received=unknown[0]
            )
        names = [name for name in schema.names if name not in (*without, self._id)]
        self._columns = [self._columns_of(spec, names) for spec in specs]
        for spec, columns in zip(specs, self._columns, strict=True):
            self._check(spec, columns, schema)
        pairs = [(spec, name) for spec, names in zip(specs, self._columns, strict=True) for name in names]
        self._types = {name: _widest(schema.field(name).type, spec) for spec, name in pairs}
        self._types |= {self._id: pa.string()} if self._id and self._is_text else {}
        self._used = list(dict.fromkeys([*([self._id] if self._id else []), *(name for _, name in pairs)]))

    def batches(self, size: int) -> Iterator[Rows]:
        """Yields all rows in order, at most `size` at a time."""
        done = 0
        with _naming(self._path):
            for read in self._read(size):
                for start in range(0, read.num_rows, size):
                    batch = read.slice(start, size)
                    ids = range(done, done + batch.num_rows)
                    done += batch.num_rows
                    arrays = [
                        self._array(batch, spec, names, ids.start)
                        for spec, names in zip(self._specs, self._columns, strict=True)
                    ]
                    yield (batch.column(self._id).to_pylist() if self._id else ids), arrays

    @property
    def _is_text(self) -> bool:
        return not self._path.name.lower().endswith(PARQUET_SUFFIXES)

    def _schema(self) -> tuple[pa.Schema, int | None]:
        """Returns the columns, and the number of rows where it is known."""
        if self._is_text:
            with open_csv(self._path, CsvOptions()) as reader:
                return reader.schema, None
        with open_parquet(self._path) as file:
            return file.schema_arrow, file.metadata.num_rows

    def _read(self, size: int) -> Iterator[pa.RecordBatch]:
        """Yields the columns that are used, some rows at a time: memory does not grow with the file."""
        if self._is_text:
            # The types of columns are given: Arrow would infer them from the first rows.
            with open_csv(self._path, CsvOptions(self._used, self._types)) as reader:
                yield from reader
        else:
            with open_parquet(self._path) as file, as_bad_file():
                yield from file.iter_batches(size, columns=self._used)

    def _columns_of(self, spec: Spec, names: list[str]) -> list[str]:
        """Returns the columns that make up an input."""
        if spec.name in names:
            return [spec.name]
        if len(self._specs) > 1:
            raise UsageError(f"has no column {spec.name!r}, but {_brief(names)}", key=_KEY, received=str(self._path))
        return names

    def _check(self, spec: Spec, columns: list[str], schema: pa.Schema) -> None:
        kinds = [schema.field(name).type for name in columns]
        texts = [name for name, kind in zip(columns, kinds, strict=True) if _numpy(kind).kind == "U"]
        if texts and spec.dtype != "string":
            raise self._text_for_numbers(spec, texts, len(columns) - len(texts))
        single = len(columns) == 1 and _is_list(kinds[0])
        size = spec.size or math.prod(size or 1 for size in spec.shape)
        if not single and size != len(columns):
            remedy = "it needs a column for each value"
            raise UsageError(
                f"has {len(columns)} columns of values ({_brief(columns)}), but the model's input {spec.name!r} takes "
                f"{spec}",
                key=_KEY,
                received=str(self._path),
                remedy="skip columns with --without NAME" if len(columns) > size else remedy,
            )
        for name, kind in zip(columns, kinds, strict=True):
            if pa.types.is_null(kind):
                continue  # no value in the first rows: reported for the first row that is read
            inner = kind.value_type if _is_list(kind) else kind
            check(Spec(spec.name, (), spec.dtype), (), _numpy(inner), f"the column {name!r}")

    def _text_for_numbers(self, spec: Spec, texts: Sequence[str], numbers: int) -> UsageError:
        """Returns the error for columns of text where a model takes numbers, and so many columns of numbers beside."""
        if numbers and (spec.size == numbers or None in spec.shape):
            remedy = f"skip what is no input: {' '.join(f'--without {name}' for name in texts)}"
        else:
            remedy = _VECTORIZE
        listed = f"column {texts[0]!r} holds" if len(texts) == 1 else f"columns {_brief(texts)} hold"
        return UsageError(
            f"the {listed} text, but the model's input {spec.name!r} takes {spec}",
            key=_KEY,
            received=str(self._path),
            remedy=remedy,
        )

    def _array(self, batch: pa.RecordBatch, spec: Spec, names: list[str], first: int) -> np.ndarray:
        for name in names:
            if batch.column(name).null_count:
                row = first + int(np.argmax(batch.column(name).is_null().to_numpy(zero_copy_only=False)))
                raise UsageError(f"has no value in row {row}, column {name!r}", key=_KEY, received=str(self._path))
        columns = [_values(batch.column(name)) for name in names]
        shape = [batch.num_rows, *(-1 if size is None else size for size in spec.shape)]
        try:
            return spec.cast((columns[0] if len(columns) == 1 else np.stack(columns, axis=1)).reshape(shape))
        except UsageError:
            raise
        except ValueError:
            raise UsageError(
                f"rows {first} and following: the values do not form {spec}", key=_KEY, received=str(self._path)
            ) from None


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _widest(kind: pa.DataType, spec: Spec) -> pa.DataType:
    """Returns the type to read a text column as: its first rows may hold only whole numbers, or nothing."""
    if spec.dtype == "string":
        return pa.string()
    if pa.types.is_boolean(kind):
        return kind
    return pa.int64() if spec.dtype.startswith(("int", "uint", "bool")) else pa.float64()


def _values(column: pa.Array) -> np.ndarray:
    flat = column.flatten() if _is_list(column.type) else column
    return flat.to_numpy(zero_copy_only=False)


def _numpy(kind: pa.DataType) -> np.dtype:
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return np.dtype(str)
    try:
        return np.dtype(kind.to_pandas_dtype())
    except (NotImplementedError, TypeError):
        return np.dtype("V")


def _brief(names: Sequence[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


def local_path(data: str | os.PathLike[str]) -> Path:
    """Returns where a file or folder is on this machine; what is at a URL is fetched.

    Raises:
      UsageError: It does not exist.
    """
    path = os.fspath(data)
    if is_url(path):
        fetched = local_files(path, _KEY)
        if not fetched:
            raise UsageError("does not exist", key=_KEY, received=path, remedy="name a file in the store")
        return Path(next(iter(fetched.values())))
    if not Path(path).exists():
        raise UsageError("does not exist", key=_KEY, received=path, remedy="name a file, or a folder of images")
    return Path(path)


def open_input(data: Any, specs: Sequence[Spec], without: Sequence[str] = (), resize: bool = False) -> InputSource:
    """Opens data of any supported kind.

    Args:
      data: The path or URL of an `.npy`, `.npz`, `.csv`, `.parquet` or `.tfrecord` file or an image; a folder of
        images; or arrays in memory, see `MemoryArrays`.
      specs: The model's inputs.
      without: Names of columns, arrays or features that are not inputs, such as the label.
      resize: Whether to resize images of another size.

    Raises:
      UsageError: The data does not exist, cannot be read, or does not fit the model.
    """
    if not isinstance(data, str | os.PathLike):
        return MemoryArrays(data, specs, without)
    path, place = os.fspath(data), local_path(data)
    if place.is_dir():
        return ImageFolder(place, specs, resize)
    name = place.name.lower()
    if name.endswith((".npy", ".npz")):
        return ArrayFile(place, specs, without)
    if name.endswith((*CSV_SUFFIXES, *PARQUET_SUFFIXES)):
        return TableFile(place, specs, without)
    if name.endswith(RECORD_SUFFIXES):
        return RecordFiles(place, specs, without)
    if name.endswith(SUFFIXES):
        return ImageFolder(place, specs, resize)
    raise UsageError("expected .npz, .npy, .csv, .parquet, .tfrecord or images", key=_KEY, received=path)
