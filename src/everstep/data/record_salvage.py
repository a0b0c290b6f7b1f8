"""What is whole in damaged record files: copies of them without the records that are not."""

import logging
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from everstep.data.record_frames import Frame, whole_frames
from everstep.errors import UsageError

logger = logging.getLogger(__name__)

_PIECE = 64
"""So many records of a damaged file are checked at once."""


class Damage(NamedTuple):
    """A place in a file where a record cannot be read."""

    file: str
    offset: int
    record: int
    reason: str

    def __str__(self) -> str:
        return f"{self.file!r} at byte {self.offset}, record {self.record}: {self.reason}"


class Salvaged:
    """Record files of which what is damaged is left out; each such record is told of in a warning.

    A file without damage is read as it is. Of others there is a copy in a temporary folder, as long as this object
    lives: without the damaged records, and without what follows a place where nobody can tell the next record.

    Args:
      tf: The module `tensorflow`.
      files: Local, uncompressed files.

    Raises:
      UsageError: Nothing in a file is whole.
    """

    def __init__(self, tf: Any, files: Sequence[str]) -> None:
        self._folder = ""
        self.damages: list[Damage] = []
        self.files = [self._whole(tf, file) for file in files]

    def _whole(self, tf: Any, file: str) -> str:
        found, damages = examined(tf, file)
        if not damages:
            return file
        for damage in damages:
            logger.warning("left out: %s", damage)
        self.damages += damages
        bad = {damage.record for damage in damages}
        good = [frame for number, frame in enumerate(found) if number not in bad]
        if not good:
            raise UsageError(f"{file!r} has no whole record: leave it out")
        copy = Path(self._own_folder(), f"{len(self.damages)}", os.path.basename(file))
        copy.parent.mkdir()
        _copy(file, good, copy)
        return str(copy)

    def _own_folder(self) -> str:
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="everstep-records-")
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder


def examined(tf: Any, file: str) -> tuple[list[Frame], list[Damage]]:
    """Reads a file to its end, and returns where its records are and which of them are damaged."""
    found, broken = whole_frames(file)
    damages = [Damage(file, found[number].data, number, "its data is damaged") for number in _damaged(tf, file, found)]
    if broken is not None:
        damages.append(Damage(file, broken.offset, len(found), f"{broken.reason}; nothing behind it can be read"))
    return found, damages


def _damaged(tf: Any, file: str, found: Sequence[Frame]) -> Iterator[int]:
    """Yields the numbers of records whose data does not have its checksum; TensorFlow computes it fast."""
    good = _readable(tf, file)
    for first in range(good, len(found), _PIECE):  # behind the first one, which ends TensorFlow's reading
        piece = found[first : first + _PIECE]
        if not _is_whole(tf, file, piece):
            yield from (first + at for at, frame in enumerate(piece) if not _is_whole(tf, file, [frame]))


def _is_whole(tf: Any, file: str, piece: Sequence[Frame]) -> bool:
    with tempfile.TemporaryDirectory(prefix="everstep-records-") as folder:
        copy = Path(folder, "piece")
        _copy(file, piece, copy)
        return _readable(tf, str(copy)) == len(piece)


def _readable(tf: Any, file: str) -> int:
    count = 0
    try:
        for _ in tf.data.TFRecordDataset(file):
            count += 1
    except tf.errors.DataLossError:
        pass
    return count


def _copy(file: str, frames: Sequence[Frame], target: Path) -> None:
    with open(file, "rb") as source, open(target, "xb") as copy:
        for frame in frames:
            source.seek(frame.offset)
            copy.write(source.read(frame.end - frame.offset))
