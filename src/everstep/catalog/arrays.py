"""NumPy's files: `.npz` for several arrays, `.npy` for one. Arrays of objects are refused: they are pickles inside."""

import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from everstep.catalog.dataset import Dataset
from everstep.config.problem import show
from everstep.errors import UsageError, nearest


class Npz(Dataset):
    """Arrays by name. The same arrays always give the same bytes, and so the same fingerprint."""

    suffixes = (".npz",)

    def load(self, path: Path, *, names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
        """Returns the arrays, or those that are named."""
        with np.load(path, allow_pickle=False) as held:
            if not isinstance(held, np.lib.npyio.NpzFile):
                raise UsageError("it holds a single array: say type: npy")
            for name in names or ():
                if name not in held.files:
                    raise UsageError(f"load_args.names: it has no array {name!r}; {nearest(str(name), held.files)}")
            return {name: held[name] for name in (held.files if names is None else names)}

    def save(self, value: Any, path: Path, *, compressed: bool = False) -> None:
        """Writes a mapping of names to arrays; `compressed` takes less room and more time."""
        method = zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED
        arrays = _named_arrays(value)
        with zipfile.ZipFile(path, "w") as archive:
            for name, array in arrays.items():
                member = zipfile.ZipInfo(f"{name}.npy")  # of a fixed date: content alone decides on the bytes
                member.compress_type = method
                with archive.open(member, "w", force_zip64=True) as file:
                    np.lib.format.write_array(file, array, allow_pickle=False)


class Npy(Dataset):
    """One array."""

    suffixes = (".npy",)

    def load(self, path: Path, *, mmap: bool = False) -> np.ndarray:
        """Returns the array; with `mmap` it stays on the disk and is read where it is used."""
        array = np.load(path, allow_pickle=False, mmap_mode="r" if mmap else None)
        if not isinstance(array, np.ndarray):
            raise UsageError("it holds several arrays: say type: npz")
        return array

    def save(self, value: Any, path: Path) -> None:
        """Writes an array, or what becomes one."""
        array = _array(value, "the value")
        with open(path, "xb") as file:
            np.save(file, array, allow_pickle=False)


def _named_arrays(value: Any) -> dict[str, np.ndarray]:
    if not isinstance(value, Mapping) or not all(isinstance(name, str) and name for name in value):
        raise UsageError(f"expected arrays by name, such as {{'x': …, 'y': …}}, received {show(value)}")
    return {name: _array(array, repr(name)) for name, array in value.items()}


def _array(value: Any, what: str) -> np.ndarray:
    try:
        array = np.asanyarray(value)
    except ValueError as error:
        raise UsageError(f"{what} is no array: {error}") from error
    if array.dtype.hasobject:
        raise UsageError(f"{what} is an array of Python objects ({type(value).__name__}); save numbers or text")
    return array
