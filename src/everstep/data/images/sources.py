"""Where images come from: folders with a subfolder per class, and rows of tables and record files.

`ImageSource` lists them once: names, labels and sizes, not pixels. What a folder or table lacks is reported then,
before a model is built.
"""

import abc
import hashlib
import itertools
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.data.files import find_files
from everstep.data.formats.images import SUFFIXES
from everstep.data.images.config import ImageDataConfig
from everstep.data.images.transforms import Transform
from everstep.data.records import JoinedRecords, Records, open_records
from everstep.errors import NOTHING, Problem, UsageError, kind_of, nearest

logger = logging.getLogger(__name__)

KEY = "input_path"

Encoded = tuple[bytes | str, int]
"""The content of an image file, or its path, and the image's class."""

_IMAGE_COLUMNS = ("image", "image/encoded", "path", "file", "filename", "image_path")
_LABEL_COLUMNS = ("label", "image/class/label", "class", "labels")
_READ_AT_ONCE = 4096  # rows, while labels are read
_SAMPLED = 256  # images whose content is part of the fingerprint


class Samples(abc.ABC):
    """Images by number, encoded.

    Attributes:
      classes: The names of the classes; a label is a position in it.
    """

    classes: list[str]

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the number of images."""

    @abc.abstractmethod
    def name(self, number: int) -> str:
        """Returns what an image is called, wherever its folder or file is: the split depends on it."""

    @abc.abstractmethod
    def fetch(self, numbers: Sequence[int]) -> list[Encoded]:
        """Returns images with their labels, in this order; those in files of their own as paths."""

    @abc.abstractmethod
    def error(self, number: int, reason: str) -> UsageError:
        """Returns an error about an image; names its file, and its row."""

    @property
    def files(self) -> Sequence[str]:
        """The tables and record files."""
        return ()

    @property
    def folders(self) -> Sequence[str]:
        """The folders that hold a folder for each class."""
        return ()

    @property
    def chunks(self) -> Sequence[range]:
        """Ranges of images that are read together; see `Records.chunks`."""
        return [range(len(self))]

    def fingerprint(self) -> Mapping[str, Any]:
        """Returns what identifies the images that are in files of their own, as plain values."""
        return {}


class FolderSamples(Samples):
    """Image files in folders that have a subfolder for each class.

    Args:
      folders: The folders.
      classes: The names of the classes; empty for those of all subfolders, sorted.

    Raises:
      UsageError: A folder has no subfolders, a subfolder has no images or is not a class, or a file is empty.
    """

    def __init__(self, folders: Sequence[str], classes: Sequence[str]) -> None:
        self._folders = list(folders)
        subfolders = [(folder, name) for folder in folders for name in _subfolders(folder)]
        self.classes = list(classes) or sorted({name for _, name in subfolders})
        positions = {name: label for label, name in enumerate(self.classes)}
        self._paths: list[str] = []
        self._names: list[str] = []
        sizes: list[int] = []
        labels: list[int] = []
        ignored: list[str] = []
        for folder, name in subfolders:
            path = os.path.join(folder, name)
            if name not in positions:
                raise UsageError("is not a class", key=KEY, received=path, remedy=nearest(name, self.classes))
            before = len(self._paths)
            for file, size in sorted(_files_below(path)):
                if not file.lower().endswith(SUFFIXES):
                    ignored.append(file)
                    continue
                if not size:
                    raise UsageError("is empty, 0 bytes", key=KEY, received=file, remedy="remove it")
                self._paths.append(file)
                self._names.append(os.path.relpath(file, folder))
                sizes.append(size)
                labels.append(positions[name])
            if len(self._paths) == before:
                reason = f"the class folder has no images ({', '.join(SUFFIXES)})"
                raise UsageError(reason, key=KEY, received=path, remedy="remove it, or put images into it")
        if ignored:
            logger.warning("%d files are not images and are ignored, such as %s", len(ignored), ignored[0])
        self._labels, self._sizes = np.array(labels, np.int32), np.array(sizes, np.int64)

    def __len__(self) -> int:
        return len(self._paths)

    @property
    def folders(self) -> Sequence[str]:
        """The folders, as configured."""
        return self._folders

    def name(self, number: int) -> str:
        """Returns the path below the folder."""
        return self._names[number]

    def fetch(self, numbers: Sequence[int]) -> list[Encoded]:
        """Returns paths and labels."""
        return [(self._paths[number], int(self._labels[number])) for number in numbers]

    def error(self, number: int, reason: str) -> UsageError:
        """Returns an error that names the file."""
        return UsageError(reason, key=KEY, received=self._paths[number])

    def fingerprint(self) -> Mapping[str, Any]:
        """Returns a digest of all names, labels and sizes, and of the content of some images."""
        return _fingerprint(self._names, self._labels, self._sizes, self._paths)


class RowSamples(Samples):
    """Images in rows: their encoded bytes, or paths of files relative to the table's folder.

    Args:
      files: Tables and record files.
      image_column: The column with the images; empty for the first of the usual names.
      label_column: The column with the classes; likewise.
      classes: The names of the classes; empty for the labels that occur, sorted.

    Raises:
      UsageError: A file or column is missing, a label is not a class, or an image file does not exist.
    """

    def __init__(self, files: Sequence[str], image_column: str, label_column: str, classes: Sequence[str]) -> None:
        every = [open_records(file, KEY) for file in files]
        self._image = _column(every[0], image_column, _IMAGE_COLUMNS, "image_column")
        self._label = _column(every[0], label_column, _LABEL_COLUMNS, "label_column")
        self._files = list(files)
        self._rows = _joined(files, [self._image, self._label])
        if not len(self._rows):
            raise UsageError("has no rows", key=KEY, received=files[0])
        self._starts = list(itertools.accumulate((len(part) for part in every), initial=0))
        self._folders = np.repeat(np.arange(len(files)), [len(part) for part in every])
        self.classes = list(classes)
        self._labels: np.ndarray | None = None
        if not (classes and _reads_whole_records(files)):
            self._read_labels(_joined(files, [self._label]))
        self._sizes = self._sizes_of_files() if isinstance(self._value(0), str) else None

    def __len__(self) -> int:
        return len(self._rows)

    def name(self, number: int) -> str:
        """Returns the path in the table; of encoded images the file's name and the row."""
        if self._sizes is not None:
            return str(self._value(number))
        file = int(self._folders[number])
        return f"{os.path.basename(self._files[file])}:{number - self._starts[file]}"

    def fetch(self, numbers: Sequence[int]) -> list[Encoded]:
        """Returns the images of some rows, or their paths, and their labels."""
        rows = self._rows.read(numbers)
        return [self._encoded(number, row) for number, row in zip(numbers, rows, strict=True)]

    def error(self, number: int, reason: str) -> UsageError:
        """Returns an error that names the file and the row."""
        if self._sizes is not None:
            return self._rows.error(number, reason, received=self._path(number, self._value(number)))
        return self._rows.error(number, f"the image {reason}")

    @property
    def files(self) -> Sequence[str]:
        """The tables and record files."""
        return self._files

    @property
    def chunks(self) -> Sequence[range]:
        """Those of the rows: the row groups of Parquet files."""
        return self._rows.chunks

    def fingerprint(self) -> Mapping[str, Any]:
        """Returns a digest of the image files that a table names; other images are part of the files."""
        if self._sizes is None or self._labels is None:
            return {}
        names = [str(row[self._image]) for row in _all_rows(self._rows)]
        paths = [self._path(number, name) for number, name in enumerate(names)]
        return _fingerprint(names, self._labels, self._sizes, paths)

    def _value(self, number: int) -> Any:
        return self._rows.value(number, self._rows[number], self._image)

    def _path(self, number: int, value: str) -> str:
        return os.path.join(os.path.dirname(self._files[int(self._folders[number])]), value)

    def _encoded(self, number: int, row: Mapping[str, Any]) -> Encoded:
        value = self._rows.value(number, dict(row), self._image)
        if isinstance(value, Mapping):  # an image of Hugging Face's `datasets`
            value = value.get("bytes") or value.get("path")
        if isinstance(value, str):
            value = self._path(number, value)
        elif not isinstance(value, bytes):
            raise self._rows.error(number, f"has no image in the column {self._image!r}")
        if self._labels is not None:
            return value, int(self._labels[number])
        return value, self._label_of(number, row)

    def _read_labels(self, rows: Records) -> None:
        """Reads the labels of all rows; finds the classes, if none are given."""
        found = [_label_text(rows, number, row, self._label) for number, row in enumerate(_all_rows(rows))]
        if not self.classes:
            self.classes = sorted(set(found), key=_as_number if all(map(_is_number, set(found))) else None)
        positions = {name: self._position(name) for name in set(found)}
        for number, name in enumerate(found):
            if positions[name] is None:
                raise self._unknown(number, name)
        self._labels = np.array([positions[name] for name in found], np.int32)

    def _label_of(self, number: int, row: Mapping[str, Any]) -> int:
        name = _label_text(self._rows, number, dict(row), self._label)
        position = self._position(name)
        if position is None:
            raise self._unknown(number, name)
        return position

    def _position(self, name: str) -> int | None:
        """Returns the class of a label: by its name, or by its number if no class is named by a number."""
        if name in self.classes:
            return self.classes.index(name)
        by_number = _is_number(name) and not any(map(_is_number, self.classes))
        return int(name) if by_number and 0 <= int(name) < len(self.classes) else None

    def _unknown(self, number: int, name: str) -> UsageError:
        remedy = nearest(name, self.classes)
        return self._rows.error(
            number, f"the label is not one of the {len(self.classes)} classes", received=name, remedy=remedy
        )

    def _sizes_of_files(self) -> np.ndarray:
        """Returns the sizes of the image files that the rows name; refuses rows whose file is missing or empty."""
        sizes = np.zeros(len(self._rows), np.int64)
        for number, row in enumerate(_all_rows(self._rows)):
            path = self._path(number, str(row.get(self._image) or ""))
            try:
                sizes[number] = os.stat(path).st_size if not os.path.isdir(path) else 0
            except OSError as error:
                raise self._rows.error(number, f"cannot be read: {error.strerror}", received=path) from None
            if not sizes[number]:
                raise self._rows.error(number, "is not a file with an image: it is empty, or a folder", received=path)
        return sizes


class ImageSource:
    """Images in files, with a class each, as configured: what a task's `build_inputs` returns.

        source = ImageSource(ImageDataConfig({"input_path": "photos", "size": 64}))
        print(len(source), source.classes)

    Args:
      config: Files, size and choices.
      classes: The names of the classes, in the order of the model's outputs; empty to find them.

    Raises:
      UsageError: A file, folder or column is missing or empty, a label is not a class.
    """

    def __init__(self, config: ImageDataConfig, classes: Sequence[str] = ()) -> None:
        if not isinstance(config, ImageDataConfig):
            path = os.fspath(config) if isinstance(config, str | os.PathLike) else None
            raise UsageError(
                f"expected an ImageDataConfig, not {kind_of(config)}",
                key="config",
                received=NOTHING if path is None else path,
                remedy=f"write ImageSource(ImageDataConfig(input_path={path or 'photos'!r}, size=224))",
            )
        config.validate()
        self.config, self.transform = config, Transform.of(config)
        self.samples = _samples(config, classes)
        self.numbers = np.arange(len(self.samples))

    @property
    def classes(self) -> list[str]:
        """The names of the classes; a label is a position in it."""
        return self.samples.classes

    def __len__(self) -> int:
        return len(self.numbers)

    def subset(self, training: bool) -> "ImageSource":
        """Returns the images that are left for training, or those that it leaves out; all without `validation_split`.

        Raises:
          UsageError: There are none.
        """
        share = self.config.validation_split
        if not share:
            return self
        left_out = np.array([is_left_out(self.samples.name(number), share) for number in range(len(self.samples))])
        found = object.__new__(ImageSource)
        found.config, found.transform, found.samples = self.config, self.transform, self.samples
        found.numbers = np.flatnonzero(~left_out if training else left_out)
        if not len(found.numbers):
            use = "training" if training else "evaluation"
            reason = f"leaves none of {len(self.samples)} images for {use}"
            raise UsageError(reason, key="validation_split", received=share)
        return found


def is_left_out(name: str, share: float) -> bool:
    """Returns whether training leaves out an image: by the first 8 bytes of the SHA-256 of its name."""
    digest = hashlib.sha256(name.replace(os.sep, "/").encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") < share * 2**64


def find_classes(config: ImageDataConfig) -> list[str]:
    """Returns the names of the classes that files have, sorted; names that are whole numbers by their value."""
    return _samples(config, ()).classes


def _samples(config: ImageDataConfig, classes: Sequence[str]) -> Samples:
    if not config.input_path:
        raise UsageError(
            "is empty", key=KEY, remedy="name a folder with a subfolder per class, a .csv, .parquet or .tfrecord file"
        )
    files = find_files(config.input_path, KEY, folders=True)  # type: ignore[arg-type]
    folders = [file for file in files if os.path.isdir(file)]
    if len(folders) == len(files):
        return FolderSamples(files, classes)
    if folders:
        raise UsageError("is a folder, and other paths are files", key=KEY, received=folders[0], remedy="name one kind")
    images = [file for file in files if file.lower().endswith(SUFFIXES)]
    if images:
        raise UsageError(
            "is an image without a class", key=KEY, received=images[0], remedy="name the folder of class folders"
        )
    return RowSamples(files, config.image_column, config.label_column, classes)


def _subfolders(folder: str) -> list[str]:
    with os.scandir(folder) as entries:
        found = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    if not found:
        raise UsageError("has no subfolders", key=KEY, received=folder, remedy="put the images of each class into one")
    return found


def _files_below(folder: str) -> Iterator[tuple[str, int]]:
    """Yields the paths and sizes of all files that are not hidden, in any order."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _files_below(entry.path)
            else:
                yield entry.path, entry.stat().st_size


def _joined(files: Sequence[str], columns: Sequence[str]) -> Records:
    parts = [open_records(file, KEY, columns=columns) for file in files]
    return parts[0] if len(parts) == 1 else JoinedRecords(parts)


def _reads_whole_records(files: Sequence[str]) -> bool:
    """Returns whether reading the labels would read the images, too."""
    return not all(file.lower().endswith((".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".pq")) for file in files)


def _column(rows: Records, given: str, usual: Iterable[str], key: str) -> str:
    known = rows.columns
    found = given if given in known else next((name for name in usual if not given and name in known), None)
    if found is None:
        remedy = nearest(given, known) if given else f"name one of {', '.join(map(repr, known))}"
        reason = f"{rows.files[0]!r} has no such column" if given else f"{rows.files[0]!r} has none of the usual names"
        problem = Problem(key, reason, received=given, remedy=remedy) if given else Problem(key, reason, remedy=remedy)
        raise UsageError(problem)
    return found


def _all_rows(rows: Records) -> Iterator[dict[str, Any]]:
    for start in range(0, len(rows), _READ_AT_ONCE):
        yield from rows.read(range(start, min(start + _READ_AT_ONCE, len(rows))))


def _label_text(rows: Records, number: int, row: dict[str, Any], column: str) -> str:
    """Returns the label of a row as text."""
    value = rows.value(number, row, column)
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        raise rows.error(number, f"has no class in the column {column!r}", received=value)
    return str(value).strip()


def _is_number(name: str) -> bool:
    return name.isascii() and name.removeprefix("-").isdigit()


def _as_number(name: str) -> tuple[int, str]:
    return int(name), name


def _fingerprint(names: Sequence[str], labels: np.ndarray, sizes: np.ndarray, paths: Sequence[str]) -> dict[str, Any]:
    digest = hashlib.sha256()
    for name, label, size in zip(names, labels.tolist(), sizes.tolist(), strict=True):
        digest.update(f"{name}\t{label}\t{size}\n".encode("utf-8", "surrogateescape"))
    for number in np.unique(np.linspace(0, len(paths) - 1, _SAMPLED).astype(int)).tolist():
        with open(paths[number], "rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return {"images": len(names), "image_bytes": int(sizes.sum()), "image_digest": digest.hexdigest()}
