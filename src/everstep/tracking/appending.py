"""Appending to a file that readers parse: all of a record, or nothing of it."""

import os


def append(descriptor: int, data: bytes) -> None:
    """Appends `data`, without a buffer; where the disk takes only a part, what it took is removed again.

    Half a record would spoil the next one.

    Args:
      descriptor: Of a file opened with `O_APPEND` that nobody else writes to.
      data: Whole records.

    Raises:
      OSError: The disk does not take it; the file is as it was.
    """
    size = os.fstat(descriptor).st_size
    try:
        while data:  # after a part, the next write says why
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
