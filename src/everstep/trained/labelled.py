"""Data with labels, to evaluate a trained model on: files that `predict` reads, and which part of them is the label.

`.npz`          arrays for the inputs, and one for the labels: `y`, `label`, `labels`, `target` or `targets`
`.csv`, `.tsv`, `.parquet`, `.tfrecord`
                a column or feature of labels, named like these
a folder        images in a folder for each class; the names of the folders are the labels

Labels that are texts become numbers: the position in the run's classes, else in the order of the alphabet.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.data.formats import (
    CSV_SUFFIXES,
    PARQUET_SUFFIXES,
    RECORD_SUFFIXES,
    BadFile,
    CsvOptions,
    NumpyFile,
    open_csv,
    open_parquet,
    read_csv,
    read_parquet,
)
from everstep.data.tfrecord import read_examples
from everstep.errors import UsageError, nearest
from everstep.trained.inputs import ImageFolder, InputSource, Spec, local_path, open_input

_KEY = "--input"  # as the readers of inputs call it; the caller renames it
_LABEL = "--label"
_USUAL = ("y", "label", "labels", "target", "targets", "y_test", "class")


class LabelledData:
    """Batches of inputs and labels, in the order of the file; it can be iterated again.

        data = LabelledData("test.csv", specs, outputs=3, label="species")
        for ids, arrays, labels in data.batches(64): ...

    Args:
      path: The file or folder, or its URL.
      specs: The model's inputs.
      outputs: How many numbers the model predicts for a sample: of a classifier, one for each class.
      label: The array, column or feature with the labels; None for the only one with a usual name.
      classes: The names of the classes; None where they are not known.
      resize: Whether to resize images of another size.

    Attributes:
      class_names: The names of the classes, in the order of their numbers; empty where labels are numbers.
      source: The inputs.
      labels: The labels of all samples: numbers of classes, or what a regression predicts.

    Raises:
      UsageError: The data cannot be read, has no labels, or does not fit the model.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        specs: Sequence[Spec],
        outputs: int,
        label: str | None = None,
        classes: Sequence[str] | None = None,
        resize: bool = False,
    ) -> None:
        place = local_path(path)
        self.source: InputSource
        if place.is_dir():
            if label is not None:
                raise UsageError("a folder of images has no columns", key=_LABEL, received=label, remedy="omit it")
            images = ImageFolder(place, specs, resize)
            self.source, found = images, _folders(images, place)
        else:
            name, found = _read_labels(place, label)
            self.source = open_input(place, specs, [name], resize)
        self.class_names = list(classes or ())
        self.labels = found
        if found.dtype.kind in "SUO":
            self.class_names = self.class_names or sorted(set(found.tolist()))
            self.labels = _numbers(found, self.class_names, outputs)

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)

    def batches(self, size: int) -> Iterator[tuple[Sequence[Any], list[np.ndarray], np.ndarray]]:
        """Yields the ids, the inputs and the labels of at most `size` samples at a time."""
        done = 0
        for ids, arrays in self.source.batches(size):
            yield ids, arrays, self.labels[done : done + len(ids)]
            done += len(ids)
        if done != len(self.labels):
            raise UsageError(f"has {done} samples and {len(self.labels)} labels", key=_KEY)


def _folders(images: ImageFolder, folder: Path) -> np.ndarray:
    """Returns the folder that each image is in, directly below the given one."""
    parts = [Path(name).parts for name in images.names]
    if alone := [parts[0] for parts in parts if len(parts) < 2]:
        raise UsageError(
            f"the image {alone[0]!r} is in no folder of a class",
            key=_KEY,
            received=str(folder),
            remedy="put the images of each class into a folder of its name",
        )
    return np.array([parts[0] for parts in parts], object)


def _read_labels(path: Path, label: str | None) -> tuple[str, np.ndarray]:
    """Returns the name of the labels in a file, and the labels."""
    name = path.name.lower()
    try:
        if name.endswith((".npz", ".npy")):
            with NumpyFile(path) as file:
                chosen = _chosen(label, [] if file.is_single else file.names, path)
                return chosen, file.read(chosen)
        if name.endswith(CSV_SUFFIXES):
            with open_csv(path, CsvOptions()) as reader:
                chosen = _chosen(label, reader.schema.names, path)
            return chosen, _column(read_csv(path, CsvOptions([chosen])), chosen, path)
        if name.endswith(PARQUET_SUFFIXES):
            with open_parquet(path) as file:
                chosen = _chosen(label, file.schema_arrow.names, path)
            return chosen, _column(read_parquet(path, [chosen]), chosen, path)
    except BadFile as error:
        raise UsageError(f"cannot be read: {error}", key=_KEY, received=str(path)) from error
    if name.endswith(RECORD_SUFFIXES):
        return _features(path, label)
    raise UsageError(
        "expected .npz, .csv, .parquet, .tfrecord or a folder with a folder of images for each class",
        key=_KEY,
        received=str(path),
    )


def _features(path: Path, label: str | None) -> tuple[str, np.ndarray]:
    chosen, values = "", list[Any]()
    for number, example in enumerate(read_examples(str(path), key=_KEY)):
        chosen = chosen or _chosen(label, sorted(example), path)
        found = example[chosen].values if chosen in example else ()
        if not len(found):
            raise UsageError(f"record {number} has no {chosen!r}", key=_KEY, received=str(path))
        one = [value.decode() if isinstance(value, bytes) else value for value in found]
        values.append(one[0] if len(one) == 1 else one)
    return chosen, np.array(values, object if values and isinstance(values[0], str) else None)


def _chosen(label: str | None, names: Sequence[str], path: Path) -> str:
    """Returns the array, column or feature with the labels."""
    if label is not None:
        if label not in names:
            remedy = nearest(label, names) if names else "use an .npz file with inputs and labels"
            raise UsageError(f"{str(path)!r} has no such labels", key=_LABEL, received=label, remedy=remedy)
        return label
    found = [name for name in names if name.lower() in _USUAL]
    if len(found) != 1:
        possible = found or list(names)
        listed = ", ".join([*possible[:8], *(["…"] if len(possible) > 8 else [])]) or "one array without a name"
        raise UsageError(
            f"{'several names could be the labels' if found else 'none of its names is one of labels'}: {listed}",
            key=_KEY,
            received=str(path),
            remedy="name them with --label NAME" if names else "use an .npz file with inputs and labels",
        )
    return found[0]


def _column(table: Any, name: str, path: Path) -> np.ndarray:
    column = table.column(name)
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise UsageError(f"has no value in row {row}, column {name!r}", key=_KEY, received=str(path))
    values = column.to_pylist()
    return np.array(values, object if values and isinstance(values[0], str) else None)


def _numbers(labels: np.ndarray, classes: Sequence[str], outputs: int) -> np.ndarray:
    """Returns texts as the numbers of their classes."""
    if len(classes) != max(2, outputs):
        raise UsageError(
            f"has {len(classes)} classes, {', '.join(map(repr, classes[:6]))}, but the model predicts {outputs}",
            key=_LABEL,
            remedy="label the samples by the numbers of the classes that the model was trained with",
        )
    places = {name: number for number, name in enumerate(classes)}
    if unknown := [name for name in labels.tolist() if name not in places]:
        known = f"none of the classes {', '.join(map(repr, classes[:6]))}"
        raise UsageError(f"a sample is {unknown[0]!r}, {known}", key=_LABEL)
    return np.array([places[name] for name in labels.tolist()], np.int64)
