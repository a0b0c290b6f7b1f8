"""How large the index of a checkpoint may become when it is read.

Arrays lie in a database of OCDBT's, whose index is packed by Zstandard. A few kilobytes of it may unpack to gigabytes,
and whoever reads the database unpacks it. So it is measured first, without unpacking: a frame of Zstandard's is a row
of blocks, each with a header that says how long it is, and unpacks to 128 KiB at most.
"""

import contextlib
import mmap
import os
import re
from collections.abc import Iterator
from pathlib import Path

from everstep.checkpoint.manifest import Damaged

_FRAME = re.compile(rb"\x28\xb5\x2f\xfd")
_RAW, _REPEATED, _PACKED, _RESERVED = range(4)  # the kinds of blocks
_LARGEST = 128 << 10
_LEAST = 1 << 10  # what an empty block counts: looking at it takes time
FREE = 48 << 20
"""What any index may unpack to: several times that of a model of ten thousand arrays."""


def require_modest(folder: Path) -> None:
    """Checks that what is packed below a folder unpacks to no more than half of what is on disk, or to little.

    Whoever unpacks it holds it three times for a moment.

    Raises:
      Damaged: It does not.
    """
    files = [Path(place, name) for place, _, names in os.walk(folder) for name in names]
    left = allowed = FREE + sum(path.stat().st_size for path in files) // 2
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
