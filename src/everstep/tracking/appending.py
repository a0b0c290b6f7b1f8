"""Appending to a file that readers parse: all of a record, or nothing of it."""

import os


def append(descriptor: int, data: bytes) -> None:
    """Appends `data`, unbuffered; if only a part can be written, that part is removed again.

    Half a record would spoil the next one.

    Args:
      descriptor: A file opened with `O_APPEND` that no other process writes to.
      data: Whole records.

    Raises:
      OSError: It cannot be written; the file is as it was.
    """
    size = os.fstat(descriptor).st_size
    try:
        while data:  # after a short write, the next one raises the reason
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise
