"""Arrays that are divided over several processes, as a checkpoint holds them: each process has written its own parts.

    12/
      state/, meta/      the other arrays, and the JSON document, by the first process
      parts/0/           what rank 0 had: `data`, its parts one after the other, and `index.json`, which says of which
                         array each is, and where in it
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

import numpy as np

from everstep import storage
from everstep.checkpoint.manifest import Damaged
from everstep.types import ArrayParts

FOLDER = "parts"
"""The folder of a checkpoint with one folder per process."""

_DATA, _INDEX = "data", "index.json"
_LARGEST_INDEX = 64 << 20

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
        return np.memmap(self.file, np.uint8, "r", self.offset, size).view(dtype).reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class StoredParts:
    """An array in a checkpoint that consists of parts."""

    shape: Shape
    dtype: np.dtype
    parts: tuple[StoredPart, ...]

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


def write(folder: Path, held: Mapping[str, ArrayParts]) -> None:
    """Writes the parts of one process to a new folder."""
    folder.mkdir()
    index: dict[str, Any] = {}
    with open(folder / _DATA, "xb") as file:
        for key, one in held.items():
            places = []
            for start, part in one.parts:
                places.append({"start": list(start), "shape": list(part.shape), "offset": file.tell()})
                file.write(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data)
            index[key] = {"shape": list(one.shape), "dtype": one.dtype.name, "parts": places}
    storage.write_json(folder / _INDEX, index)


def writer(path: str) -> int | None:
    """Returns the rank of the process that has written a file of a checkpoint as its part; None for other files."""
    folder, _, rest = path.partition("/")
    rank = rest.partition("/")[0]
    return int(rank) if folder == FOLDER and rank.isdecimal() else None


def find(path: Path) -> dict[str, StoredParts]:
    """Returns the arrays of a checkpoint that consist of parts, by key; empty for most checkpoints.

    The checkpoint may come from an untrusted source: an array is never larger than what is on disk of it.

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
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise Damaged(f"the index of {name} cannot be used: {error!r}") from error
    for key, one in found.items():
        if one.dtype.hasobject or any(not _fits(part, one, size) for part in one.parts):
            raise Damaged(f"the parts of {key} in {name} do not fit it")
    return found


def _parsed(file: Path, entry: Any) -> StoredParts:
    parts = (
        StoredPart(file, int(part["offset"]), tuple(map(int, part["start"])), tuple(map(int, part["shape"])))
        for part in entry["parts"]
    )
    return StoredParts(tuple(map(int, entry["shape"])), np.dtype(str(entry["dtype"])), tuple(parts))


def _fits(part: StoredPart, whole: StoredParts, size: int) -> bool:
    if not len(part.start) == len(part.shape) == len(whole.shape):
        return False
    inside = all(0 <= along.start <= along.stop <= most for along, most in zip(part.place, whole.shape, strict=True))
    return inside and 0 <= part.offset <= size - math.prod(part.shape) * whole.dtype.itemsize


def _shifted(along: slice, begin: int) -> slice:
    return slice(along.start - begin, along.stop - begin)


def _check_complete(key: str, one: StoredParts) -> None:
    """Every element was written once: the sizes add up."""
    there, expected = sum(math.prod(part.shape) for part in one.parts), math.prod(one.shape)
    if there != expected or len({part.start for part in one.parts}) != len(one.parts):
        raise Damaged(f"{there:,} of {expected:,} elements of {key} are there")
