"""Arrays in `.npy` and `.npz` files, told apart by their content.

Nothing is unpickled, and nothing is allocated for an array that claims to be larger than its file.
"""

import contextlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, Self

import numpy as np

from everstep.data.formats.bad_file import BadFile, in_one_line

_SUFFIX = ".npy"
_ERRORS = (
    OSError,
    EOFError,
    ValueError,
    MemoryError,
    NotImplementedError,  # an unknown compression
    RuntimeError,  # an encrypted archive
    zipfile.BadZipFile,
    zlib.error,
)


class NumpyFile:
    """The arrays of an `.npy` or `.npz` file, which is open inside a `with` block.

        with NumpyFile("digits.npz") as file:
            file.names             # ['x', 'y']
            labels = file.read("y")
            rows = file.rows("x")  # read some at a time
            rows.take(32)

    Attributes:
      names: The names of the arrays; the array of an `.npy` file has none, so its name is empty.
      is_single: Whether it is an `.npy` file.

    Args:
      path: The file.

    Raises:
      BadFile: It cannot be read, or is neither.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = path
        self._opened = contextlib.ExitStack()
        with _as_bad_file(), contextlib.ExitStack() as opened:
            file = opened.enter_context(open(path, "rb"))
            self.is_single = file.read(len(np.lib.format.MAGIC_PREFIX)) == np.lib.format.MAGIC_PREFIX
            self._archive = None if self.is_single else opened.enter_context(zipfile.ZipFile(file))
            members = self._archive.namelist() if self._archive else [_SUFFIX]
            self.names = [name.removesuffix(_SUFFIX) for name in members if name.endswith(_SUFFIX)]
            self._opened = opened.pop_all()

    def read(self, name: str = "", *, mapped: bool = False) -> np.ndarray:
        """Returns an array.

        Args:
          name: Its name; that of an `.npy` file has none.
          mapped: Whether it stays on the disk, and is read where it is used; for `.npy` files.

        Raises:
          BadFile: There is no such array, it holds Python objects, is damaged, or does not fit into memory.
        """
        with _as_bad_file(), self._open(name) as file:
            self._header(file, name)
            if mapped:
                return np.lib.format.open_memmap(self._path, mode="r")
            file.seek(0)
            array: np.ndarray = np.lib.format.read_array(file, allow_pickle=False)
            return array

    def rows(self, name: str = "") -> "StoredRows":
        """Returns an array at its first row, which is read as long as the file is open.

        Raises:
          BadFile: It has no rows, or not one after the other; it holds Python objects, or is damaged.
        """
        with _as_bad_file():
            file = self._opened.enter_context(self._open(name))
            return StoredRows(file, *self._header(file, name))

    def _open(self, name: str) -> IO[bytes]:
        if name not in self.names:
            raise BadFile(f"it has no array {name!r}, but {', '.join(map(repr, self.names)) or 'none'}")
        return open(self._path, "rb") if self._archive is None else self._archive.open(f"{name}{_SUFFIX}")

    def _header(self, file: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype]:
        """Reads an array's header: its shape, whether it is in Fortran order, and the type of its values."""
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, in_fortran_order, dtype = read(file)
        if dtype.hasobject:
            raise BadFile("an array in it holds Python objects, which are not loaded: save numbers or text")
        archive = self._archive
        size = os.path.getsize(self._path) if archive is None else archive.getinfo(f"{name}{_SUFFIX}").file_size
        if math.prod(shape) * dtype.itemsize > size - file.tell():
            raise BadFile(f"an array in it should have the shape {shape}, but the file ends before its last value")
        return shape, in_fortran_order, dtype

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()


class StoredRows:
    """An array in a file, row after row.

    Attributes:
      shape: The shape of all of it.
      dtype: The type of its values.
    """

    def __init__(self, file: IO[bytes], shape: tuple[int, ...], in_fortran_order: bool, dtype: np.dtype) -> None:
        self._file, self.shape, self.dtype = file, shape, dtype
        if not shape or (in_fortran_order and len(shape) > 1):
            raise BadFile("an array in it has no rows: save it in C order, samples along the first axis")

    def take(self, rows: int) -> np.ndarray:
        """Returns the next rows.

        Raises:
          BadFile: The file is damaged, or ends before.
        """
        shape = (rows, *self.shape[1:])
        wanted = math.prod(shape) * self.dtype.itemsize
        with _as_bad_file():
            data = self._file.read(wanted)
        if len(data) < wanted:
            raise BadFile("the file ends before its last row")
        return np.frombuffer(data, self.dtype).reshape(shape)


@contextlib.contextmanager
def _as_bad_file() -> Iterator[None]:
    """Turns what NumPy and zipfile raise inside the block into `BadFile`."""
    try:
        yield
    except BadFile:
        raise
    except _ERRORS as error:
        raise BadFile(in_one_line(error)) from error
