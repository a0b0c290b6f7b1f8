"""`.npy` and `.npz` files, read some rows at a time; nothing in them is unpickled."""

import contextlib
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from everstep.errors import UsageError
from everstep.inference.specs import Spec, check

_IDS = ("id", "ids")
_USUAL = ("x", "inputs", "data", "x_test")


class ArrayFile:
    """Arrays in a file: one, or one for each input of the model by its name.

    Args:
      path: The file.
      specs: The model's inputs.
      without: Arrays that are no inputs.

    Raises:
      UsageError: It cannot be read, or does not fit.
    """

    def __init__(self, path: Path, specs: Sequence[Spec], without: Sequence[str] = ()) -> None:
        self._path, self._specs = path, list(specs)
        with self._opened() as arrays:
            self._names = _chosen(list(arrays), specs, without, path)
            ids = [name for name in _IDS if name in arrays and name not in self._names]
            self._ids = ids[0] if ids else None
            for spec, name in zip(specs, self._names, strict=True):
                check(spec, arrays[name].shape[1:], arrays[name].dtype, f"{name or path.name!r}")
            self.count: int | None = _one_length({name: arrays[name].shape[0] for name in [*self._names, *ids]}, path)

    def batches(self, size: int) -> Iterator[tuple[Sequence[Any], list[np.ndarray]]]:
        """Yields all rows in order, at most `size` at a time."""
        with self._opened() as arrays:
            count = self.count or 0
            for start in range(0, count, size):
                many = min(size, count - start)
                rows = [spec.cast(arrays[name].take(many)) for spec, name in zip(self._specs, self._names, strict=True)]
                ids = arrays[self._ids].take(many).tolist() if self._ids else range(start, start + many)
                yield ids, rows

    @contextlib.contextmanager
    def _opened(self) -> Iterator[dict[str, "_Reader"]]:
        try:
            with contextlib.ExitStack() as stack:
                if self._path.suffix.lower() == ".npy":
                    yield {"": _Reader(stack.enter_context(open(self._path, "rb")))}
                    return
                archive = stack.enter_context(zipfile.ZipFile(self._path))
                names = [name for name in archive.namelist() if name.endswith(".npy")]
                yield {name[:-4]: _Reader(stack.enter_context(archive.open(name))) for name in names}
        except UsageError:
            raise
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UsageError(f"--input: {str(self._path)!r} cannot be read: {error}") from error


class _Reader:
    """An array in a file, row after row."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        self.shape, fortran, self.dtype = read(file)
        if self.dtype.hasobject:
            raise UsageError("--input: an array in it holds Python objects, which are not loaded: save numbers or text")
        if not self.shape or (fortran and len(self.shape) > 1):
            raise UsageError("--input: an array in it has no rows: save it in C order, samples along the first axis")

    def take(self, rows: int) -> np.ndarray:
        """Returns the next rows."""
        shape = (rows, *self.shape[1:])
        wanted = int(np.prod(shape)) * self.dtype.itemsize
        data = self._file.read(wanted)
        if len(data) < wanted:
            raise ValueError("the file ends before its last row")
        return np.frombuffer(data, self.dtype).reshape(shape)


def _chosen(names: list[str], specs: Sequence[Spec], without: Sequence[str], path: Path) -> list[str]:
    """Returns the array for each input: by its name, or the only one that can be meant."""
    if all(spec.name in names for spec in specs):
        return [spec.name for spec in specs]
    left = [name for name in names if name not in without and name not in _IDS]
    usual = [name for name in _USUAL if name in left]
    if len(specs) == 1 and (len(left) == 1 or usual):
        return left if len(left) == 1 else usual[:1]
    wanted = ", ".join(spec.name for spec in specs)
    raise UsageError(
        f"--input: {str(path)!r} has the arrays {', '.join(names)}, but the model takes {wanted}: name them so, or "
        "leave others out with --without NAME"
    )


def _one_length(lengths: dict[str, int], path: Path) -> int:
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length}" for name, length in lengths.items())
        raise UsageError(f"--input: the arrays in {str(path)!r} have different numbers of rows: {said}")
    return next(iter(lengths.values()))
