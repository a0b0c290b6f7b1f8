"""Data to predict on: opened by what its name ends with, checked against the model before anything is computed."""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from everstep.errors import UsageError
from everstep.inference.array_files import ArrayFile
from everstep.inference.image_folder import SUFFIXES as IMAGES
from everstep.inference.image_folder import ImageFolder
from everstep.inference.record_files import SUFFIXES as RECORDS
from everstep.inference.record_files import RecordFiles
from everstep.inference.specs import Spec
from everstep.inference.table_files import TableFile
from everstep.remote import is_url, local_files

_TABLES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")

Rows = tuple[Sequence[Any], list[np.ndarray]]
"""Some samples: their ids, and an array for each of the model's inputs."""


class Source(Protocol):
    """Data that fits a model; it was looked at when it was opened.

    Attributes:
      count: How many samples there are; None where only the end tells.
    """

    count: int | None

    def batches(self, size: int) -> Iterator[Rows]:
        """Yields all samples in order, at most `size` at a time."""


@dataclasses.dataclass(frozen=True)
class Choice:
    """What of the data is to be used, where it holds more.

    Attributes:
      without: Columns, arrays or features that are no inputs, such as the label.
      resize: Whether images of another size are made to fit.
    """

    without: tuple[str, ...] = ()
    resize: bool = False


EVERYTHING = Choice()
"""All of it, as it is."""


def open_input(path: str, specs: Sequence[Spec], choice: Choice = EVERYTHING) -> Source:
    """Opens data of any kind there is.

    Args:
      path: The path, or the URL, of an `.npy`, `.npz`, `.csv`, `.parquet` or `.tfrecord` file or an image; or a
        folder of images.
      specs: The model's inputs.
      choice: What of it to use.

    Raises:
      UsageError: There is no such data, or it does not fit the model.
    """
    place = _fetched(path) if is_url(path) else Path(path)
    if place.is_dir():
        return ImageFolder(place, specs, choice.resize)
    if not place.is_file():
        raise UsageError(f"--input: there is no {path!r}: name a file, or a folder of images")
    name = place.name.lower()
    if name.endswith((".npy", ".npz")):
        return ArrayFile(place, specs, choice.without)
    if name.endswith(_TABLES):
        return TableFile(place, specs, choice.without)
    if name.endswith(RECORDS):
        return RecordFiles(place, specs, choice.without)
    if name.endswith(IMAGES):
        return ImageFolder(place, specs, choice.resize)
    raise UsageError(f"--input: {path!r} is of no known kind: expected .npz, .npy, .csv, .parquet, .tfrecord, images")


def _fetched(url: str) -> Path:
    """Returns where a file of a store is on this machine; what was fetched before is not fetched again."""
    found = local_files(url, "--input")
    if not found:
        raise UsageError(f"--input: there is no {url!r}: name a file in the store")
    return Path(next(iter(found.values())))
