"""Reads some arrays of a checkpoint: first all shapes, then the selected arrays.

The checkpoint may come from an untrusted source, so nothing is decoded that could expand in memory. Everstep stores
arrays uncompressed: a checkpoint with compressed arrays, or with chunks larger than the array, is refused.
"""

import contextlib
import json
import mmap
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorstore as ts

from everstep.checkpoint import base, parts
from everstep.checkpoint.manifest import Damaged
from everstep.types import State

_FRAME = re.compile(rb"\x28\xb5\x2f\xfd")  # the first bytes of a Zstandard frame
_RAW, _REPEATED, _COMPRESSED, _RESERVED = range(4)  # the kinds of Zstandard blocks
_LARGEST_BLOCK = 128 << 10
_SMALLEST_BLOCK = 1 << 10  # an empty block counts as this: visiting it takes time
_INDEX_LIMIT = 48 << 20
"""Bytes that any index may decompress to: several times the index of a model of ten thousand arrays."""

_LARGEST_PARTS_INDEX = 8 << 20
"""Bytes of an index of parts, enough for fifty thousand arrays: JSON may take twenty times as many in memory."""

_PREFIX, _SUFFIX = "arrays.", "/.zarray"  # around the key of an array: where Orbax keeps its description
_LONGEST_DESCRIPTION = 1 << 16
_NUMBER = re.compile(r"[<>|][biufc](1|2|4|8|16)|bfloat16|float8_\w{1,16}|u?int[24]")


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array with elements, by key, without reading the arrays.

    Frozen weights that the checkpoint refers to, and that are in its run's directory, are included.

    Raises:
      Damaged: The checkpoint cannot be read, or would expand to far more memory than it has bytes.
      MissingBase: The frozen weights are not there.
    """
    place = base.find(path)
    frozen = {} if place is None else shapes(place)
    return frozen | _own_shapes(path)


def _own_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the same for what the checkpoint itself contains."""
    _limit_parts_index(path / parts.FOLDER)
    in_parts = {key: one.shape for key, one in parts.find(path).items()}
    _limit_index(path / "state")
    with _readable("its list of arrays"):
        store = ts.KvStore.open(_kvstore(path), context=_context()).result()
        names = [name.decode() for name in store.list().result()]
    keys = [name[len(_PREFIX) : -len(_SUFFIX)] for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    return {key: _shape(store, key) for key in keys} | in_parts


def read(path: Path, keys: Iterable[str]) -> State:
    """Returns the arrays of these keys as they were written; call `shapes` first, which checks the checkpoint.

    Raises:
      Damaged: An array cannot be read.
    """
    wanted, place = list(keys), base.find(path)
    if place is not None:
        own = _own_shapes(path)
        frozen = read(place, [key for key in wanted if key not in own])
        return frozen | _read_own(path, [key for key in wanted if key in own])
    return _read_own(path, wanted)


def _read_own(path: Path, wanted: list[str]) -> State:
    """Returns the same for what the checkpoint itself contains."""
    in_parts = parts.find(path)
    with _readable("one of its arrays"):
        whole = [key for key in wanted if key not in in_parts]
        specs = {key: {"driver": "zarr", "kvstore": _kvstore(path, f"{_PREFIX}{key}/")} for key in whole}
        context = _context()
        opened = {key: ts.open(spec, open=True, read=True, context=context) for key, spec in specs.items()}
        reading = {key: array.result().read() for key, array in opened.items()}
        found = {key: np.asarray(array.result()) for key, array in reading.items()}
        return {key: in_parts[key].read() if key in in_parts else found[key] for key in wanted}


def _context() -> Any:
    """Returns a context that caches the index: otherwise it would be decompressed again for every array."""
    return ts.Context({"cache_pool": {"total_bytes_limit": _INDEX_LIMIT}})


def _kvstore(path: Path, key: str = "") -> dict[str, Any]:
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path.absolute() / 'state'}/"}, "path": key}


def _shape(store: Any, key: str) -> tuple[int, ...]:
    with _readable(key):
        stored = json.loads(store.read(f"{_PREFIX}{key}{_SUFFIX}").result().value[:_LONGEST_DESCRIPTION])
        shape, chunks = tuple(map(int, stored["shape"])), tuple(map(int, stored["chunks"]))
        compressed, dtype = (stored.get("compressor"), stored.get("filters")), stored["dtype"]
        too_large = any(chunk > max(size, 1) for chunk, size in zip(chunks, shape, strict=True))
    if too_large:
        raise Damaged(f"{key} of shape {shape} is stored in chunks of {chunks}")
    if any(compressed):
        raise Damaged(f"{key} is compressed, which Everstep does not do")
    if not isinstance(dtype, str) or not _NUMBER.fullmatch(dtype):
        raise Damaged(f"{key} holds no numbers, but {str(dtype)[:40]!r}")
    return shape


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # tensorstore raises many kinds for files that it did not write
        reason = str(error).strip().partition("\n")[0][:300]
        raise Damaged(f"{what} cannot be read: {type(error).__name__}: {reason}") from error


def _limit_parts_index(folder: Path) -> None:
    """Checks that no index of parts is far too large.

    Raises:
      Damaged: One is.
    """
    for file in folder.glob("*/index.json"):
        if file.stat().st_size > _LARGEST_PARTS_INDEX:
            raise Damaged(f"the index of {folder.name}/{file.parent.name} is far too large")


def _limit_index(folder: Path) -> None:
    """Checks that the index below a folder decompresses to at most half of the bytes on disk, or to little.

    Arrays are in an OCDBT database, whose index is compressed by Zstandard. A few kilobytes may decompress to gigabytes
    as soon as the database is opened, held three times for a moment. So the size is measured first, without
    decompressing: a Zstandard frame is a sequence of blocks, each with a header that has its length, and a block
    decompresses to 128 KiB at most.

    Raises:
      Damaged: The index decompresses to more.
    """
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    left = allowed = _INDEX_LIMIT + sum(path.stat().st_size for path in files) // 2
    for path in files:
        for decompressed in _blocks(path):
            left -= decompressed
            if left < 0:
                raise Damaged(f"its index would decompress to more than {allowed >> 20:,} MiB")


def _blocks(path: Path) -> Iterator[int]:
    """Yields the most that each block of each frame decompresses to, and a little for bytes that resemble a frame."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))
        if os.fstat(file.fileno()).st_size == 0:  # an empty file cannot be mapped
            return
        data = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for found in _FRAME.finditer(data):
            yield from _blocks_of_frame(data, found.end())


def _blocks_of_frame(data: mmap.mmap, at: int) -> Iterator[int]:
    """Yields the most that each block decompresses to, of a frame whose descriptor is at `at`."""
    descriptor = data[at] if at < len(data) else 0
    single = descriptor >> 5 & 1
    size_bytes = (single, 2, 4, 8)[descriptor >> 6]
    at += 1 + (1 - single) + (0, 1, 2, 4)[descriptor & 3] + size_bytes
    last, kind = 0, _RAW
    while not last and kind != _RESERVED and at + 3 <= len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        yield max(size, _LARGEST_BLOCK if kind == _COMPRESSED else _SMALLEST_BLOCK)
        at += 3 + (1 if kind == _REPEATED else size)
