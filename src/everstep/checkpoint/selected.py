"""Some arrays of a checkpoint, without the others: their shapes first, then those that are wanted.

Somebody else may have written it. So nothing of it is decoded that could grow: Orbax is asked to store arrays as they
are, and a checkpoint that has them packed, or in pieces larger than themselves, is refused.
"""

import contextlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from everstep.checkpoint import ocdbt
from everstep.checkpoint.manifest import Damaged
from everstep.checkpoint.quiet import quiet
from everstep.types import State

with quiet():
    import tensorstore as ts

_PREFIX, _SUFFIX = "arrays.", "/.zarray"  # around the key of an array, where Orbax keeps what it says of it
_LONGEST = 1 << 16
_NUMBER = re.compile(r"[<>|][biufc](1|2|4|8|16)|bfloat16|float8_\w{1,16}|u?int[24]")


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every array with elements, by key; reads none of them.

    Raises:
      Damaged: It cannot be read, or would take far more memory than it has bytes.
    """
    ocdbt.require_modest(path / "state")
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
    return ts.Context({"cache_pool": {"total_bytes_limit": ocdbt.FREE}})


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
