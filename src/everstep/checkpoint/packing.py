"""Small arrays of a checkpoint, packed: one after the other, in a few flat arrays of bytes.

Orbax runs a third of a millisecond of Python for each array that it writes. A model has hundreds of arrays, most of
them small, and while Orbax holds Python's lock, the training loop cannot start its next step. Copying bytes needs no
lock. So Orbax gets few arrays: the large ones, and the packs.

    12/
      state/        by Orbax: large arrays, each under its key, and the packs under their numbers
      packs.jsonl   a line per packed array: its key, dtype and shape, the number of its pack, where it begins there

Bytes are as in memory: C order, little endian. A packed array lies in one pack, and no two share a byte.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import ml_dtypes
import numpy as np

from everstep.checkpoint.manifest import Damaged
from everstep.types import State

INDEX = "packs.jsonl"
"""The file of a checkpoint that says where packed arrays are."""

SMALL = 4 << 20
"""Arrays of fewer bytes are packed. Packs are copies, so this also limits the memory that they need: 110 of the 307 MB
of ResNet50 with Adam, whose other 30 arrays keep the lock for 10 ms. With 16 MiB there would be a copy of everything."""

LARGEST = 64 << 20
"""The most bytes of a pack: readers have one pack at a time in memory, beside the arrays that they want."""

_LARGEST_INDEX = 16 << 20  # about 150,000 arrays
_LONGEST_LINE = 1 << 16
_MOST_DIMENSIONS = 32

_DTYPES = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64", "complex64", "complex128", "bfloat16", "int4"),
        *("float8_e3m4", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
        *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
    )
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}


class Packed(NamedTuple):
    """Where an array is: in which pack, and from which byte on."""

    dtype: np.dtype
    shape: tuple[int, ...]
    pack: int
    start: int
    end: int


Index = Mapping[str, Packed]
"""Where the packed arrays of a checkpoint are, by key."""


class Memory:
    """The memory of the packs, which a checkpointer keeps from one save to the next.

    To copy into new memory takes ten times as long: the system has to provide and clear it, page by page.
    """

    def __init__(self) -> None:
        self._packs: list[np.ndarray] = []

    def packs(self, sizes: Sequence[int]) -> list[np.ndarray]:
        """Returns arrays of so many bytes; those of an earlier call are overwritten."""
        self._packs += [np.empty(size, np.uint8) for size in sizes[len(self._packs) :]]
        for number, size in enumerate(sizes):
            if self._packs[number].size < size:
                self._packs[number] = np.empty(size, np.uint8)
        return [pack[:size] for pack, size in zip(self._packs, sizes, strict=False)]


def is_packed(array: np.ndarray) -> bool:
    """Returns whether an array with elements is written into a pack."""
    return array.nbytes < SMALL and array.dtype in _NAMES and array.ndim <= _MOST_DIMENSIONS


def pack(state: State, memory: Memory) -> tuple[list[np.ndarray], Index]:
    """Copies arrays into packs, in their order; returns the packs, and where each array is."""
    index: dict[str, Packed] = {}
    sizes: list[int] = []
    for key, array in state.items():
        if not sizes or sizes[-1] + array.nbytes > LARGEST:
            sizes.append(0)
        begin, end = sizes[-1], sizes[-1] + array.nbytes
        index[key] = Packed(array.dtype, array.shape, len(sizes) - 1, begin, end)
        sizes[-1] = end
    packs = memory.packs(sizes)
    for key, place in index.items():
        packs[place.pack][place.start : place.end] = _bytes(state[key])
    return packs, index


def unpack_all(packs: dict[str, np.ndarray], index: Index) -> State:
    """Returns the arrays of a checkpoint's packs, by number; each pack is removed when its arrays are copied.

    Raises:
      Damaged: The packs are not those of the index.
    """
    check(index, {int(number): content.size for number, content in packs.items()})
    found: State = {}
    for number in list(packs):
        found |= unpack(int(number), packs.pop(number), index)
    return found


def unpack(number: int, content: np.ndarray, index: Index) -> State:
    """Returns those arrays of an index that are in one pack, each in memory of its own."""
    inside = {key: place for key, place in index.items() if place.pack == number}
    found = {key: np.empty(place.shape, place.dtype) for key, place in inside.items()}
    for key, place in inside.items():
        _bytes(found[key])[...] = content[place.start : place.end]
    return found


def _bytes(array: np.ndarray) -> np.ndarray:
    """Returns an array as bytes; they are the same memory if that is in C order."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


# -- the index ---------------------------------------------------------------------------------------------------------


def write_index(path: Path, index: Index) -> None:
    """Writes the index of a checkpoint, which has none yet.

    Raises:
      ValueError: It is larger than what readers accept.
    """
    lines = [
        f'[{json.dumps(key)},"{_NAMES[place.dtype]}",{list(place.shape)},{place.pack},{place.start}]\n'
        for key, place in index.items()
    ]
    if sum(map(len, lines)) > _LARGEST_INDEX or max(map(len, lines), default=0) > _LONGEST_LINE:
        raise ValueError(f"{len(index):,} small arrays with such keys are more than a checkpoint can have")
    (path / INDEX).write_text("".join(lines))


def read_index(path: Path) -> Index:
    """Returns where the packed arrays of a checkpoint are; nothing for one of before there were packs.

    The checkpoint may come from an untrusted source. Lines are parsed one by one, and the first one that is wrong ends
    it: a long text of nested lists would need a hundred times its size in memory.

    Raises:
      Damaged: A line cannot be used, or two arrays share bytes.
    """
    index: dict[str, Packed] = {}
    try:
        with open(path / INDEX, "rb") as file:
            if file.seek(0, 2) > _LARGEST_INDEX:
                raise Damaged(f"its {INDEX} is far too large")
            file.seek(0)
            while line := file.readline(_LONGEST_LINE):
                key, place = _parsed(line)
                if key in index:
                    raise Damaged(f"{key[:200]} is twice in its {INDEX}")
                index[key] = place
    except FileNotFoundError:
        return {}
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = f"{type(error).__name__}: {str(error)[:200]}"
        raise Damaged(f"line {len(index) + 1:,} of its {INDEX} cannot be used: {reason}") from error
    _check_apart(index)
    return index


def check(index: Index, sizes: Mapping[int, int]) -> None:
    """Checks that the arrays of a checkpoint are inside of its packs, and that nothing else is there.

    Args:
      index: All arrays; `read_index` has checked that they do not overlap.
      sizes: How many bytes each pack has.

    Raises:
      Damaged: They are not.
    """
    used = dict.fromkeys(sizes, 0)
    for key, place in index.items():
        if place.end > (size := sizes.get(place.pack, 0)):
            raise Damaged(f"{key[:200]} would end at byte {place.end:,} of pack {place.pack}, which has {size:,}")
        used[place.pack] += place.end - place.start
    for number, size in sizes.items():
        if used[number] != size:
            raise Damaged(f"pack {number} has {size:,} bytes, of which its {INDEX} names {used[number]:,}")


def _parsed(line: bytes) -> tuple[str, Packed]:
    key, name, shape, number, start = json.loads(line)
    if not isinstance(key, str) or any(type(value) is not int or value < 0 for value in (*shape, number, start)):
        raise ValueError("it is no key with natural numbers")
    if len(shape) > _MOST_DIMENSIONS:
        raise ValueError(f"{len(shape)} dimensions")
    size = _DTYPES[name].itemsize
    for length in shape:  # a product of many large numbers would be a number of many digits
        size *= length
        if size > LARGEST:
            break
    if not 0 < size <= LARGEST - start:
        raise ValueError("the array does not fit into a pack")
    return key, Packed(_DTYPES[name], tuple(shape), number, start, start + size)


def _check_apart(index: Index) -> None:
    """Checks that no two arrays share bytes: together they are never larger than the packs."""
    before = Packed(np.dtype(bool), (), -1, 0, 0)
    for key, place in sorted(index.items(), key=lambda item: (item[1].pack, item[1].start)):
        if place.pack == before.pack and place.start < before.end:
            raise Damaged(f"{key[:200]} shares bytes of pack {place.pack} with another array")
        before = place
