"""Some arrays of a checkpoint, without the others: their shapes first, then those that are wanted.

Somebody else may have written the checkpoint. So nothing of it is decoded that could grow: Orbax is configured to store
arrays as they are, and a checkpoint that has them packed, or in pieces larger than themselves, is refused.
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

from everstep.checkpoint.manifest import Damaged
from everstep.types import State

_FRAME = re.compile(rb"\x28\xb5\x2f\xfd")
_RAW, _REPEATED, _PACKED, _RESERVED = range(4)  # the kinds of Zstandard blocks
_LARGEST = 128 << 10
_LEAST = 1 << 10  # what an empty block counts: visiting it takes time
_INDEX_LIMIT = 48 << 20
"""What any index may unpack to: several times that of a model of ten thousand arrays."""


_PREFIX, _SUFFIX = "arrays.", "/.zarray"  # around the key of an array, where Orbax keeps what it says of it
_LONGEST = 1 << 16
_NUMBER = re.compile(r"[<>|][biufc](1|2|4|8|16)|bfloat16|float8_\w{1,16}|u?int[24]")


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array with elements, by key; reads none of them.

    Raises:
      Damaged: It cannot be read, or would take far more memory than it has bytes.
    """
    _require_modest_index(path / "state")
    with _readable("its list of arrays"):
        store = ts.KvStore.open(_kvstore(path), context=_context()).result()
        names = [name.decode() for name in store.list().result()]
    keys = [name[len(_PREFIX) : -len(_SUFFIX)] for name in names if name.startswith(_PREFIX) and name.endswith(_SUFFIX)]
    return {key: _shape(store, key) for key in keys}


def read(path: Path, keys: Iterable[str]) -> State:
    """Returns the arrays of these keys, of which `shapes` has told the shapes, as they were written.

    Raises:
      Damaged: One cannot be read.
    """
    with _readable("one of its arrays"):
        specs = {key: {"driver": "zarr", "kvstore": _kvstore(path, f"{_PREFIX}{key}/")} for key in keys}
        context = _context()
        opened = {key: ts.open(spec, open=True, read=True, context=context) for key, spec in specs.items()}
        coming = {key: array.result().read() for key, array in opened.items()}
        return {key: np.asarray(array.result()) for key, array in coming.items()}


def _context() -> Any:
    """Keeps the index in memory while it is used: else it is unpacked anew for every array."""
    return ts.Context({"cache_pool": {"total_bytes_limit": _INDEX_LIMIT}})


def _kvstore(path: Path, key: str = "") -> dict[str, Any]:
    return {"driver": "ocdbt", "base": {"driver": "file", "path": f"{path.absolute() / 'state'}/"}, "path": key}


def _shape(store: Any, key: str) -> tuple[int, ...]:
    with _readable(key):
        said = json.loads(store.read(f"{_PREFIX}{key}{_SUFFIX}").result().value[:_LONGEST])
        shape, chunks = tuple(map(int, said["shape"])), tuple(map(int, said["chunks"]))
        packed, dtype = (said.get("compressor"), said.get("filters")), said["dtype"]
        too_large = any(chunk > max(size, 1) for chunk, size in zip(chunks, shape, strict=True))
    if too_large:
        raise Damaged(f"{key} of shape {shape} is stored in pieces of {chunks}")
    if any(packed):
        raise Damaged(f"{key} is packed, which Everstep does not do")
    if not isinstance(dtype, str) or not _NUMBER.fullmatch(dtype):
        raise Damaged(f"{key} holds no numbers, but {str(dtype)[:40]!r}")
    return shape


@contextlib.contextmanager
def _readable(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # of tensorstore whatever it finds in files that somebody else wrote
        reason = str(error).strip().partition("\n")[0][:300]
        raise Damaged(f"{what} cannot be read: {type(error).__name__}: {reason}") from error


def _require_modest_index(folder: Path) -> None:
    """Checks that what is packed below a folder unpacks to no more than half of what is on disk, or to little.

    Arrays are in an OCDBT database, whose index is packed by Zstandard. A few kilobytes of it may unpack to gigabytes,
    three times for a moment, as soon as the database is read. So it is measured first, without unpacking: a Zstandard
    frame is a row of blocks, each with a header that says how long it is, and unpacks to 128 KiB at most.

    Raises:
      Damaged: It unpacks to more.
    """
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    left = allowed = _INDEX_LIMIT + sum(path.stat().st_size for path in files) // 2
    for path in files:
        for unpacked in _blocks(path):
            left -= unpacked
            if left < 0:
                raise Damaged(f"its index would unpack to more than {allowed >> 20:,} MiB")


def _blocks(path: Path) -> Iterator[int]:
    """Yields the most that each block of each frame unpacks to; what looks like a frame by chance has a few, too."""
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(open(path, "rb"))
        if os.fstat(file.fileno()).st_size == 0:  # which cannot be mapped
            return
        data = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        for found in _FRAME.finditer(data):
            yield from _blocks_of_frame(data, found.end())


def _blocks_of_frame(data: mmap.mmap, at: int) -> Iterator[int]:
    """Yields the blocks of a frame whose description begins at `at`."""
    described = data[at] if at < len(data) else 0
    single = described >> 5 & 1
    size_bytes = (single, 2, 4, 8)[described >> 6]
    at += 1 + (1 - single) + (0, 1, 2, 4)[described & 3] + size_bytes
    last, kind = 0, _RAW
    while not last and kind != _RESERVED and at + 3 <= len(data):
        header = int.from_bytes(data[at : at + 3], "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        yield max(size, _LARGEST if kind == _PACKED else _LEAST)
        at += 3 + (1 if kind == _REPEATED else size)
