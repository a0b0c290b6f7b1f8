"""Arrays that a checkpoint holds in parts: small ones, and those that are divided over several processes.

    12/
      state/, meta/      the large arrays, and the JSON document, by the first process
      parts/0/           what rank 0 had: `data`, its parts one after the other, and `index.json`, which says of which
                         array each is, and where in it. A small array is one part
      parts/1/           what rank 1 had
      manifest.json      the digests of all files, by the first process

Together the parts are the arrays, whatever the number of processes and devices was: any other number reads them.
Numbers are as in memory, little endian, not compressed. (Orbax writes NumPy arrays on the first process only.)
"""

import dataclasses
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from everstep.checkpoint.digests import array_bytes
from everstep.checkpoint.manifest import Damaged
from everstep.types import ArrayParts

FOLDER = "parts"
"""The folder of a checkpoint with one folder per process."""

SMALL = 4 << 20
"""Arrays of fewer bytes are small: Orbax would need more time for them than their bytes take."""

_DATA, _INDEX = "data", "index.json"
_LARGEST_INDEX = 64 << 20
_LARGEST_NUMBER = 1 << 62
_MOST_DIMENSIONS = 64  # NumPy has no arrays with more

Shape = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class StoredPart:
    """A part of an array in a checkpoint.

    Attributes:
      file: The file that contains it.
      offset: Where it begins in the file.
      start: Where it begins in the array, along each dimension.
      shape: Its shape.
    """

    file: Path
    offset: int
    start: Shape
    shape: Shape

    @property
    def place(self) -> tuple[slice, ...]:
        """Where it is in the array."""
        return tuple(slice(begin, begin + size) for begin, size in zip(self.start, self.shape, strict=True))

    def mapped(self, dtype: np.dtype) -> np.ndarray:
        """Returns it as an array whose elements are read from the file when they are used."""
        size = math.prod(self.shape) * dtype.itemsize
        return np.memmap(str(self.file), np.uint8, "r", self.offset, size).view(dtype).reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class StoredParts:
    """An array in a checkpoint that consists of parts."""

    shape: Shape
    dtype: np.dtype
    parts: tuple[StoredPart, ...]

    @property
    def is_small(self) -> bool:
        """Whether it is a small array, which was not divided."""
        return len(self.parts) == 1 and math.prod(self.shape) * self.dtype.itemsize < SMALL

    def read(self, place: tuple[slice, ...] = ()) -> np.ndarray:
        """Returns the part at a place, by default everything; reads only what it needs."""
        wanted = [along.indices(size)[:2] for along, size in zip(place, self.shape, strict=False)]
        wanted += [(0, size) for size in self.shape[len(wanted) :]]
        found = np.zeros([end - begin for begin, end in wanted], self.dtype)
        for part in self.parts:
            both = [
                slice(max(begin, along.start), max(begin, along.start, min(end, along.stop)))
                for (begin, end), along in zip(wanted, part.place, strict=True)
            ]
            if math.prod(along.stop - along.start for along in both):
                here = tuple(_shifted(along, begin) for along, (begin, _) in zip(both, wanted, strict=True))
                there = tuple(_shifted(along, begin) for along, begin in zip(both, part.start, strict=True))
                found[here] = part.mapped(self.dtype)[there]
        return found

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self.read(), dtype)


def is_small(array: np.ndarray) -> bool:
    """Returns whether an array with elements is written here, and not by Orbax."""
    return array.nbytes < SMALL and _is_number(array.dtype)


def in_one(array: np.ndarray) -> ArrayParts:
    """Returns an array that is not divided, as one part."""
    return ArrayParts(array.shape, array.dtype, [((0,) * array.ndim, array)])


def write(folder: Path, held: Mapping[str, ArrayParts]) -> None:
    """Writes the parts of one process to a new folder; without any, there is no folder."""
    held = {key: one for key, one in held.items() if one.parts}
    if not held:
        return
    folder.mkdir(parents=True)
    index: dict[str, Any] = {}
    offset = 0
    with open(folder / _DATA, "xb") as file:
        for key, one in held.items():
            places = []
            for start, part in one.parts:
                places.append({"start": list(start), "shape": list(part.shape), "offset": offset})
                offset += file.write(array_bytes(part))
            index[key] = {"shape": list(one.shape), "dtype": one.dtype.name, "parts": places}
    (folder / _INDEX).write_text(json.dumps(index))


def writer(path: str) -> int | None:
    """Returns the rank of the process that has written a file of a checkpoint as its part; None for other files."""
    folder, _, rest = path.partition("/")
    rank = rest.partition("/")[0]
    return int(rank) if folder == FOLDER and rank.isdecimal() else None


def find(path: Path) -> dict[str, StoredParts]:
    """Returns the arrays of a checkpoint that are in parts, by key.

    The checkpoint may come from an untrusted source: together, the arrays are never larger than what is on disk.

    Raises:
      Damaged: Parts are missing, or do not fit together.
    """
    entries = (path / FOLDER).iterdir() if (path / FOLDER).is_dir() else ()
    found: dict[str, StoredParts] = {}
    for folder in sorted(entry for entry in entries if entry.name.isdecimal()):
        for key, new in _stored(folder).items():
            before = found.get(key, dataclasses.replace(new, parts=()))
            if (before.shape, before.dtype) != (new.shape, new.dtype):
                raise Damaged(f"the parts of {key} are not of one array")
            found[key] = dataclasses.replace(new, parts=before.parts + new.parts)
    for key, one in found.items():
        _check_complete(key, one)
    return found


def _stored(folder: Path) -> dict[str, StoredParts]:
    """Returns what one process has written."""
    name, file = f"{FOLDER}/{folder.name}", folder / _DATA
    try:
        if (folder / _INDEX).stat().st_size > _LARGEST_INDEX:
            raise Damaged(f"the index of {name} is far too large")
        index, size = json.loads((folder / _INDEX).read_bytes()), file.stat().st_size
        found = {str(key): _parsed(file, entry) for key, entry in index.items()}
    except (OSError, KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise Damaged(f"the index of {name} cannot be used: {repr(error)[:200]}") from error
    for key, one in found.items():
        if not _is_number(one.dtype) or any(not _fits(part, one, size) for part in one.parts):
            raise Damaged(f"the parts of {key} in {name} do not fit it")
    if sum(math.prod(part.shape) * one.dtype.itemsize for one in found.values() for part in one.parts) > size:
        raise Damaged(f"parts in {name} share bytes")
    return found


def _parsed(file: Path, entry: Any) -> StoredParts:
    parts = (
        StoredPart(file, _numbers([part["offset"]])[0], _numbers(part["start"]), _numbers(part["shape"]))
        for part in entry["parts"]
    )
    whole = StoredParts(_numbers(entry["shape"]), np.dtype(str(entry["dtype"])), tuple(parts))
    # NumPy also refuses an array without elements if the product of its other dimensions is too large.
    if math.prod(max(1, length) for length in whole.shape) * whole.dtype.itemsize > _LARGEST_NUMBER:
        raise ValueError("an array of this shape is too large")
    return whole


def _numbers(values: list[Any]) -> tuple[int, ...]:
    """Returns whole numbers that describe an array.

    Raises:
      ValueError: They are others, below 0, or more or larger than arrays have.
    """
    if len(values) > _MOST_DIMENSIONS or any(
        type(value) is not int or not 0 <= value <= _LARGEST_NUMBER for value in values
    ):
        raise ValueError("these are no dimensions")
    return tuple(values)


def _fits(part: StoredPart, whole: StoredParts, size: int) -> bool:
    if not len(part.start) == len(part.shape) == len(whole.shape):
        return False
    inside = all(0 <= along.start <= along.stop <= most for along, most in zip(part.place, whole.shape, strict=True))
    return inside and 0 <= part.offset <= size - math.prod(part.shape) * whole.dtype.itemsize


def _is_number(dtype: np.dtype) -> bool:
    return dtype.kind in "biufc" or hasattr(ml_dtypes, dtype.name)


def _shifted(along: slice, begin: int) -> slice:
    return slice(along.start - begin, along.stop - begin)


def _check_complete(key: str, one: StoredParts) -> None:
    """Every element was written once: the sizes add up."""
    there, expected = sum(math.prod(part.shape) for part in one.parts), math.prod(one.shape)
    if there != expected or len({part.start for part in one.parts}) != len(one.parts):
        raise Damaged(f"{there:,} of {expected:,} elements of {key} are there")
