"""Reading errors that say which file, and where in it; TensorFlow's own do not name the file."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.data.files import ReadFile, first_line
from everstep.errors import UsageError
from everstep.types import Batch

_MAGIC = b"\x1f\x8b"
"""What a gzip file begins with."""


def naming_damage(tf: Any, batches: Iterator[Batch], files: Sequence[tuple[str, ReadFile]]) -> Iterator[Batch]:
    """Yields the batches; where reading them fails, looks for the file that is to blame.

    Args:
      tf: The module `tensorflow`.
      batches: What is read from the files.
      files: Their paths, and how each is read.

    Raises:
      UsageError: A file is damaged, gone, or not what `read` expects; names it and the place in it.
    """
    causes = (tf.errors.DataLossError, tf.errors.NotFoundError, tf.errors.PermissionDeniedError)
    try:
        yield from batches
    except causes as error:
        for file, read in files:
            _check(tf, file, read, causes)
        raise UsageError(f"the records cannot be read: {first_line(error)}") from error


def _check(tf: Any, file: str, read: ReadFile, causes: tuple[type[Exception], ...]) -> None:
    records = 0
    try:
        for _ in read(tf.constant(file)):
            records += 1
    except causes as error:
        where = f"{file!r}{_offset(error)}, after {records} good records"
        raise UsageError(f"{where}: {_cause(tf, file)} ({first_line(error)})") from error


def _offset(error: Exception) -> str:
    found = re.search(r"record at (\d+)", str(error))
    return f" at byte {found[1]}" if found else ""


def _cause(tf: Any, file: str) -> str:
    if not tf.io.gfile.exists(file):
        return "it is gone"
    with tf.io.gfile.GFile(file, "rb") as opened:
        kind = " (it is a gzip file)" if opened.read(len(_MAGIC)) == _MAGIC else ""
    return f"it is damaged, or compressed in another way than it is read{kind}: write it again, or say its compression"
