"""An array that is larger than what should be in memory: written part by part, then read from its file."""

import tempfile
from typing import Any, Self

import numpy as np

from everstep import storage
from everstep.checkpoint.remote import cache
from everstep.errors import UsageError


class ArrayFile:
    """Rows in a file below `$EVERSTEP_CACHE_DIR` that has no name: it is gone when nothing uses it, and after a kill.

        with ArrayFile() as file:
            file.append(np.zeros((256, 64), "int32"))
            rows = file.array()  # read from the file where it is used, also after the block

    Raises:
      UsageError: The folder cannot be written to.
    """

    def __init__(self) -> None:
        storage.prepare_directory(cache.root())
        self._file: Any = tempfile.TemporaryFile(dir=cache.root(), buffering=0)  # noqa: SIM115
        self._rows, self._first = 0, np.zeros(0)

    def append(self, rows: np.ndarray) -> None:
        """Adds rows; all parts have the same type and the same shape but for the number of rows.

        Raises:
          UsageError: The disk is full.
        """
        unwritten = np.ascontiguousarray(rows).data.cast("B")
        try:
            while len(unwritten):
                unwritten = unwritten[self._file.write(unwritten) :]
        except OSError as error:
            reason, remedy = f"cannot be written: {error.strerror}", "free some space, or set EVERSTEP_CACHE_DIR"
            raise UsageError(reason, received=str(cache.root()), remedy=remedy) from error
        self._rows, self._first = self._rows + len(rows), rows[:0]

    def array(self) -> np.ndarray:
        """Returns all rows, mapped from the file; read only."""
        shape = (self._rows, *self._first.shape[1:])
        return np.memmap(self._file, self._first.dtype, "r", shape=shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()
