"""The types of data that a catalog reads and writes, and which of them an entry has.

TFRecord files need the package TensorFlow, on every backend. Those that do not fit into memory are read batch by batch
instead: `get_tfrecord_dataset(catalog.path(name), …)`.
"""

import gzip
import importlib.util
import json
import shutil
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.config import Allowed, dialect, resolve, trusted_packages
from everstep.data.formats import (
    MODES,
    BadFile,
    CsvOptions,
    FeatureValues,
    NumpyFile,
    decode,
    read_csv,
    read_parquet,
    separator,
)
from everstep.data.tfrecord import TfExampleBuilder, read_examples, record_files, write_tfrecords
from everstep.errors import UsageError, kind_of, nearest
from everstep.frontends.catalog import pickles
from everstep.frontends.catalog.data_type import DataType


class Npz(DataType):
    """Arrays by name. The same arrays always give the same bytes, and so the same fingerprint."""

    suffixes = (".npz",)

    def load(self, path: Path, *, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Returns the arrays, or those that are named."""
        with NumpyFile(path) as file:
            if file.is_single:
                raise UsageError("it holds a single array", remedy="set type: npy")
            for name in names or ():
                if name not in file.names:
                    remedy = nearest(str(name), file.names)
                    raise UsageError(f"it has no array {name!r}", key="load_args.names", remedy=remedy)
            return {name: file.read(name) for name in (file.names if names is None else names)}

    def save(self, value: Any, path: Path, *, compressed: bool = False) -> None:
        """Writes a mapping of names to arrays; `compressed` takes less room and more time."""
        method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        arrays = _named_arrays(value)
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")  # of a fixed date: content alone decides on the bytes
                member.compress_type = method
                with archive.open(member, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)


class Npy(DataType):
    """One array."""

    suffixes = (".npy",)

    def load(self, path: Path, *, mmap: bool = False) -> np.ndarray:
        """Returns the array; with `mmap` it stays on the disk and is read where it is used."""
        with NumpyFile(path) as file:
            if not file.is_single:
                raise UsageError("it holds several arrays", remedy="set type: npz")
            return file.read(mapped=mmap)

    def save(self, value: Any, path: Path) -> None:
        """Writes an array, or what becomes one."""
        array = _array(value, "the value")
        with open(path, "xb") as file:
            np.save(file, array, allow_pickle=False)


def _named_arrays(value: Any) -> dict[str, np.ndarray]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise UsageError("expected arrays by name, such as {'x': …, 'y': …}", received=value)
    return {name: _array(array, repr(name)) for name, array in value.items()}


def _array(value: Any, what: str) -> np.ndarray:
    try:
        array = np.asanyarray(value)
    except ValueError as error:
        raise UsageError(f"{what} is not an array: {error}") from error
    if array.dtype.hasobject:
        raise UsageError(f"{what} is an array of Python objects ({kind_of(value)})", remedy="save numbers or text")
    return array


# -- tables: CSV and Parquet, by Arrow -------------------------------------------------------------------------------

FORMS = ("pandas", "arrow", "columns")
_COLUMN_TYPES = {"str": "string", "text": "string", "int": "int64", "float": "float64", "datetime": "timestamp[us]"}


class Csv(DataType):
    """A text file of rows, whose first line names the columns.

    Numbers keep every digit, and text that is empty stays apart from what is missing. Columns get their types from
    their content, so text that looks like numbers becomes numbers: `dtype: {zip: text}` keeps it.
    """

    suffixes = (".csv", ".csv.gz", ".tsv")

    def load(
        self,
        path: Path,
        *,
        sep: str | None = None,
        names: Sequence[str] | None = None,
        usecols: Sequence[str] | None = None,
        dtype: Mapping[str, str] | None = None,
        na_values: Sequence[str] | None = None,
        decimal: str = ".",
        quotechar: str = '"',
        skiprows: int = 0,
        encoding: str = "utf-8",
        form: str = "pandas",
    ) -> Any:
        """Returns the table.

        Args:
          path: The file.
          sep: Between values; a comma, or a tab in a `.tsv` file.
          names: Of the columns, where the first line has values already.
          usecols: The columns to read.
          dtype: Types of columns: `text`, `int64`, `float32`, `bool`, `datetime`, any other of Arrow's.
          na_values: What stands for a missing value, besides nothing.
          decimal: What separates the decimals.
          quotechar: What encloses text.
          skiprows: How many lines to leave out at the top.
          encoding: Of the file.
          form: `pandas` for a DataFrame, `arrow` for a `pyarrow.Table`, `columns` for NumPy arrays by name.
        """
        _require_form(form)
        options = CsvOptions(
            columns=usecols,
            types={name: _arrow_type(alias) for name, alias in (dtype or {}).items()},
            separator=sep,
            names=names,
            skip_rows=skiprows,
            encoding=encoding,
            quote=quotechar,
            decimal=decimal,
            missing=None if na_values is None else ["", *map(str, na_values)],
            text_may_be_missing=True,
        )
        return _in_form(read_csv(path, options), form)

    def save(self, value: Any, path: Path, *, sep: str | None = None, header: bool = True, index: bool = False) -> None:
        """Writes a table; `index` writes the index of a DataFrame as well."""
        import pyarrow as pa
        from pyarrow import csv

        options = csv.WriteOptions(include_header=header, delimiter=sep or separator(path))
        with pa.output_stream(str(path), compression="detect") as stream:
            csv.write_csv(_as_table(value, index), stream, options)


class Parquet(DataType):
    """A file of columns with their types; the index of a DataFrame is kept."""

    suffixes = (".parquet", ".pq")

    def load(self, path: Path, *, columns: Sequence[str] | None = None, form: str = "pandas") -> Any:
        """Returns the table, or some of its columns, in the form that `Csv.load` describes."""
        _require_form(form)
        return _in_form(read_parquet(path, columns), form)

    def save(self, value: Any, path: Path, *, compression: str = "zstd") -> None:
        """Writes a table; compressions are `zstd`, `snappy`, `gzip`, `none`."""
        from pyarrow import parquet

        parquet.write_table(_as_table(value, None), path, compression=compression)


def _as_table(value: Any, index: bool | None) -> Any:
    """Returns a DataFrame, a `pyarrow.Table` or columns by name as a `pyarrow.Table`.

    Raises:
      UsageError: It is something else.
    """
    import pyarrow as pa

    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(value, pandas.DataFrame):
        return pa.Table.from_pandas(value, preserve_index=index)
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, Mapping) and all(isinstance(name, str) for name in value):
        return pa.table(dict(value))
    raise UsageError("expected a DataFrame, a pyarrow.Table or columns by name", received=value)


def _in_form(table: Any, form: str) -> Any:
    """Returns a `pyarrow.Table` in the requested form."""
    if form == "pandas":
        return table.to_pandas()
    return table if form == "arrow" else {name: table[name].to_numpy() for name in table.column_names}


def _arrow_type(alias: str) -> Any:
    """Returns Arrow's type for a name such as `int64` or `text`."""
    import pyarrow as pa

    try:
        return pa.type_for_alias(_COLUMN_TYPES.get(alias, alias))
    except (ValueError, AttributeError):
        known = [*_COLUMN_TYPES, "int32", "float32", "bool", "date32"]
        remedy = nearest(str(alias), known)
        raise UsageError("unknown type", key="load_args.dtype", received=alias, remedy=remedy) from None


def _require_form(form: str) -> None:
    if form not in FORMS:
        raise UsageError("unknown form", key="load_args.form", received=form, remedy=nearest(str(form), FORMS))
    if form == "pandas" and importlib.util.find_spec("pandas") is None:
        remedy = "pip install pandas, or set load_args: {form: columns}"
        raise UsageError("a DataFrame needs pandas", remedy=remedy)


# -- text, JSON and YAML ---------------------------------------------------------------------------------------------


class Text(DataType):
    """Text, unchanged to the last line break."""

    suffixes = (".txt", ".md", ".log", ".html")

    def load(self, path: Path, *, encoding: str = "utf-8") -> str:
        """Returns the text of a file."""
        return path.read_bytes().decode(encoding)

    def save(self, value: Any, path: Path, *, encoding: str = "utf-8") -> None:
        """Writes text."""
        if not isinstance(value, str):
            raise UsageError("expected text", received=value)
        path.write_bytes(value.encode(encoding))


class Json(DataType):
    """Numbers, text, lists and mappings. NaN and the infinities are refused: no other program could read them."""

    suffixes = (".json", ".json.gz")

    def load(self, path: Path) -> Any:
        """Returns the value of a file."""
        data = path.read_bytes()
        return json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)

    def save(self, value: Any, path: Path, *, indent: int | None = 2) -> None:
        """Writes a value; NumPy's become plain ones."""
        data = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=_json_value) + "\n"
        path.write_bytes(gzip.compress(data.encode(), mtime=0) if path.suffix == ".gz" else data.encode())


class Yaml(DataType):
    """What config files are written in."""

    suffixes = (".yaml", ".yml")

    def load(self, path: Path) -> Any:
        """Returns the value of a file."""
        return dialect.load(path.read_text("utf-8-sig"))

    def save(self, value: Any, path: Path) -> None:
        """Writes a value."""
        path.write_bytes(dialect.dump(value).encode())


def _json_value(value: Any) -> Any:
    if hasattr(value, "tolist"):
        return value.tolist()
    raise UsageError(f"JSON cannot represent a {type(value).__name__}", received=value)


# -- images with a table of labels -----------------------------------------------------------------------------------

_CHANNELS = {mode: channels for channels, mode in MODES.items()}
_IMAGE_FOLDER = "images"


class Images(DataType):
    """Images of one size, and a table with a row for each.

        data/raw/cats/labels.csv        file,label
                                        images/0.png,cat
        data/raw/cats/images/0.png

    The value is a mapping: `image` is an array of uint8 (samples, height, width, channels), `file` the names in the
    table, `label` and every other column an array.
    """

    marker = "labels.csv"

    def load(
        self,
        path: Path,
        *,
        size: Sequence[int] | None = None,
        mode: str | None = None,
        decode: bool = True,
        dtype: Mapping[str, str] | None = None,
    ) -> dict[str, np.ndarray]:
        """Returns images and columns.

        Args:
          path: The folder.
          size: Height and width to scale to; without it all images must have the same.
          mode: `L` for grey, `RGB`, `RGBA`; by default that of the first image.
          decode: False leaves the images alone, for data that does not fit into memory: `file` has whole paths then.
          dtype: Types of columns, as for CSV: `{label: text}` keeps `007`.
        """
        columns = _image_table(path / self.marker, dtype)
        files = [_image_path(path, name) for name in columns["file"]]
        if not decode:
            return {**columns, "file": np.array([str(file) for file in files])}
        return {"image": _decoded_images(files, size, mode), **columns}

    def save(self, value: Any, path: Path) -> None:
        """Writes images as PNG files below `images/`; names in `file` are used where there are any."""
        columns = _checked_images(value)
        count = len(columns["image"])
        names = columns.get("file", np.array([f"{_IMAGE_FOLDER}/{number:05d}.png" for number in range(count)]))
        for name, image in zip(names, columns.pop("image"), strict=True):
            _write_image(image, path, str(name))
        rest = {name: column for name, column in columns.items() if name != "file"}
        Csv().save({"file": [str(name) for name in names], **rest}, path / self.marker)


def _image_table(path: Path, dtype: Mapping[str, str] | None) -> dict[str, np.ndarray]:
    if not path.is_file():
        remedy = "add a CSV file with the columns file,label"
        raise UsageError(f"there is no {path.name} in it", remedy=remedy)
    columns = Csv().load(path, dtype={"file": "text", **(dtype or {})}, form="columns")
    for name in ("file", "label"):
        if name not in columns:
            raise UsageError(f"{path.name} has no column {name!r}", remedy=nearest(name, columns))
    if not len(columns["file"]):
        raise UsageError(f"{path.name} has no row")
    return columns


def _image_path(folder: Path, name: Any) -> Path:
    """Returns an image's path; a name that leads out of the folder is refused."""
    file = folder / str(name)
    if name is None or not file.resolve().is_relative_to(folder.resolve()):
        raise UsageError("the table names a file that is not in the folder", received=name)
    if not file.is_file():
        raise UsageError(f"the table names a file that does not exist: {file}", received=name)
    return file


def _decoded_images(files: Sequence[Path], size: Sequence[int] | None, mode: str | None) -> np.ndarray:
    if size is not None and (len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size)):
        raise UsageError("expected [height, width]", key="load_args.size", received=size)
    if mode is not None and mode not in _CHANNELS:
        raise UsageError("unknown mode", key="load_args.mode", received=mode, remedy=nearest(str(mode), _CHANNELS))
    first = _image(files[0], size, None if mode is None else _CHANNELS[mode])
    images = np.empty((len(files), *first.shape), np.uint8)
    for number, file in enumerate(files):
        image = _image(file, size, first.shape[-1])
        if image.shape != first.shape:
            raise UsageError(
                f"{file} has {image.shape[0]} x {image.shape[1]} pixels, {files[0].name} {first.shape[0]} x "
                f"{first.shape[1]}",
                remedy="set load_args: {size: [height, width]}",
            )
        images[number] = image
    return images


def _image(file: Path, size: Sequence[int] | None, channels: int | None) -> np.ndarray:
    from PIL import Image

    try:
        image = decode(file.read_bytes(), channels)
    except (BadFile, OSError) as error:
        raise UsageError(f"the image {file} {error}") from error
    if size is not None and (image.height, image.width) != tuple(size):
        image = image.resize((size[1], size[0]), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    return pixels[..., None] if pixels.ndim == 2 else pixels


def _checked_images(value: Any) -> dict[str, np.ndarray]:
    if not isinstance(value, Mapping) or not {"image", "label"} <= set(value):
        raise UsageError("expected {'image': array, 'label': array}", received=value)
    columns = {str(name): np.asarray(column) for name, column in value.items()}
    image = columns["image"]
    if image.dtype != np.uint8 or image.ndim != 4 or image.shape[-1] not in MODES or not image.size:
        raise UsageError(
            "must be uint8 (samples, height, width, 1, 3 or 4)", key="image", received=f"{image.dtype} {image.shape}"
        )
    for name, column in columns.items():
        if name != "image" and column.shape != (len(image),):
            raise UsageError(f"must have one value for each of {len(image)} images", key=name, received=column.shape)
    return columns


def _write_image(pixels: np.ndarray, folder: Path, name: str) -> None:
    from PIL import Image

    file = folder / name
    if not file.resolve().is_relative_to(folder.resolve()) or file.suffix.lower() != ".png" or file.exists():
        raise UsageError("must be a unique name in the folder, ending in .png", key="file", received=name)
    file.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels[..., 0] if pixels.shape[-1] == 1 else pixels).save(file)


# -- TFRecord files of tf.train.Example, as arrays -------------------------------------------------------------------

_RECORD_TYPES = {"int64": np.int64, "float": np.float32, "bytes": object}

Example = Mapping[str, FeatureValues]


class TfRecord(DataType):
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
        examples = (example for file in record_files(path) for example in read_examples(file, compression, ""))
        columns = _record_columns(examples, features)
        return {name: _reshaped(name, column, (shapes or {}).get(name)) for name, column in columns.items()}

    def save(self, value: Any, path: Path, *, compression: str = "") -> None:
        """Writes arrays by name, whose first axis is the records."""
        write_tfrecords(path, _examples(value), compression)


def _record_columns(examples: Iterable[Example], features: Sequence[str] | None) -> dict[str, np.ndarray]:
    rows = [_record(example, features) for example in examples]
    if not rows:
        raise UsageError("there is no record in it")
    for number, row in enumerate(rows):
        if set(row) != set(rows[0]):
            odd = sorted(set(row) ^ set(rows[0]))[0]
            raise UsageError(
                f"not every record has the feature {odd!r} (see record {number})",
                remedy="name others in load_args.features",
            )
    return {name: _stacked_column(name, [row[name] for row in rows]) for name in rows[0]}


def _record(example: Example, features: Sequence[str] | None) -> dict[str, np.ndarray]:
    row = {}
    for name in sorted(example) if features is None else features:
        if name not in example:
            remedy = nearest(str(name), example)
            raise UsageError(f"a record has no {name!r}", key="load_args.features", remedy=remedy)
        kind, values = example[name]
        row[name] = np.array(values, dtype=_RECORD_TYPES[kind])
    return row


def _stacked_column(name: str, values: list[np.ndarray]) -> np.ndarray:
    lengths = {len(value) for value in values}
    if len(lengths) > 1 or len({value.dtype for value in values}) > 1:
        raise UsageError(
            f"the feature {name!r} has between {min(lengths)} and {max(lengths)} values, or several types",
            remedy="leave it out of load_args.features, or read the records with get_tfrecord_dataset",
        )
    column = np.stack(values)
    return column[:, 0] if lengths == {1} else column


def _reshaped(name: str, column: np.ndarray, shape: Sequence[int] | None) -> np.ndarray:
    if shape is None:
        return column
    try:
        return column.reshape(len(column), *shape)
    except (ValueError, TypeError):
        reason = f"{name!r} has {column.shape[1:] or (1,)} values per record"
        raise UsageError(reason, key="load_args.shapes", received=shape) from None


def _examples(value: Any) -> Iterator[TfExampleBuilder]:
    if not isinstance(value, Mapping) or not value or not all(isinstance(name, str) for name in value):
        raise UsageError("expected arrays by name", received=value)
    columns = {name: _flat_column(name, np.asarray(column)) for name, column in value.items()}
    sizes = {name: len(column) for name, column in columns.items()}
    if len(set(sizes.values())) > 1:
        raise UsageError("arrays must have the same length along their first axis", received=sizes)
    for number in range(next(iter(sizes.values()))):
        builder = TfExampleBuilder()
        for name, column in columns.items():
            _add_feature(builder, name, column[number])
        yield builder


def _flat_column(name: str, column: np.ndarray) -> np.ndarray:
    if not column.ndim or column.dtype.kind not in "biufSUO":
        raise UsageError("must be an array of numbers or text", key=name, received=f"{column.dtype} {column.shape}")
    rows = column.reshape(len(column), -1) if column.size else column.reshape(len(column), 0)
    return rows.astype(np.int64) if column.dtype.kind in "b" else rows


def _add_feature(builder: TfExampleBuilder, name: str, values: np.ndarray) -> None:
    add = {"f": builder.add_floats_feature, "i": builder.add_ints_feature, "u": builder.add_ints_feature}
    add.get(values.dtype.kind, builder.add_bytes_feature)(name, values)


# -- models, and paths that the project opens itself -----------------------------------------------------------------


class KerasModel(DataType):
    """A model with its weights, not compiled.

    It is loaded as predictions load it: of Keras's own layers, and of classes that the project has decorated with
    `@keras.saving.register_keras_serializable()` and imported; what would run code or read other files is refused.
    """

    suffixes = (".keras",)

    def load(self, path: Path) -> Any:
        """Returns the model."""
        from everstep.trained import load_keras  # brings Keras

        return load_keras(path)

    def save(self, value: Any, path: Path) -> None:
        """Writes a model."""
        import keras

        if not isinstance(value, keras.Model):
            raise UsageError("expected a keras.Model", received=value)
        value.save(path)


class PathItself(DataType):
    """The path of a file or folder; data in a store is fetched first."""

    def load(self, path: Path) -> Path:
        """Returns the path on this machine."""
        return path

    def save(self, value: Any, path: Path) -> None:
        """Copies a file or a folder."""
        if not isinstance(value, str | Path) or not Path(value).exists():
            raise UsageError("expected the path of a file or folder to copy", received=value)
        if Path(value).is_dir():
            shutil.copytree(value, path)
        else:
            shutil.copyfile(value, path)


# -- which type an entry has -----------------------------------------------------------------------------------------

SHIPPED: dict[str, type[DataType]] = {
    "npz": Npz,
    "npy": Npy,
    "csv": Csv,
    "parquet": Parquet,
    "images": Images,
    "text": Text,
    "json": Json,
    "yaml": Yaml,
    "tfrecord": TfRecord,
    "keras": KerasModel,
    "path": PathItself,
    pickles.NAME: pickles.Pickle,
}
"""The types that need no code of a project."""

_ELSEWHERE = {
    "csvdataset": "csv",
    "parquetdataset": "parquet",
    "jsondataset": "json",
    "yamldataset": "yaml",
    "textdataset": "text",
    "pickledataset": pickles.NAME,
    "tensorflowmodeldataset": "keras",
}
"""Their names in other catalogs, after the last dot."""


def type_name(given: str | None, filepath: str) -> str:
    """Returns the name of an entry's type; checks what can be checked without importing anything of the project's.

    Raises:
      UsageError: There is no such type, or none follows from the path.
    """
    if given is None:
        return _by_suffix(filepath)
    other = _ELSEWHERE.get(given.rpartition(".")[2].lower())
    if given not in SHIPPED and other:
        raise UsageError("unknown type", received=given, remedy=f"use {other!r}")
    if given not in SHIPPED and "." not in given:
        remedy = f"{nearest(given, SHIPPED)} or the dotted name of a class of this project"
        raise UsageError("unknown type", received=given, remedy=remedy)
    return given


def open_type(name: str, root: Path) -> DataType:
    """Returns an object that reads and writes a type; a class of the project is imported for it.

    Raises:
      UsageError: The project does not allow the type, or it is no `everstep.catalog.DataType`.
    """
    kind = SHIPPED.get(name) or resolve(name, Allowed(root, trusted_packages(root)))
    if not isinstance(kind, type) or not issubclass(kind, DataType):
        raise UsageError(f"{name!r} must be a class that extends everstep.catalog.DataType", received=kind)
    made = kind()
    made.require_permission(root)
    return made


def _by_suffix(filepath: str) -> str:
    name = filepath.rstrip("/").rpartition("/")[2].lower()
    known = {suffix: kind for kind, data_type in SHIPPED.items() for suffix in data_type.suffixes}
    fitting = [suffix for suffix in known if name.endswith(suffix) and name != suffix]
    if fitting:
        return known[max(fitting, key=len)]
    if "." not in name.lstrip("."):
        return "path"
    suffix = f".{name.partition('.')[2]}"
    remedy = f"{nearest(suffix, known)} or set type: path"
    raise UsageError("the type does not follow from the path", received=filepath, remedy=remedy)
