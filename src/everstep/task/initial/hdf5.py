"""The arrays of an HDF5 file that somebody else wrote: their shapes, and those that are wanted.

HDF5 can refer to other files in many ways: links, datasets stored elsewhere, datasets put together from others. Keras
writes none of these, so a file that has one is refused, before it is followed.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import h5py
import ml_dtypes
import numpy as np

from everstep.errors import UsageError
from everstep.task.initial.find import KEY

_LONGEST_NAME = 4096
_LONGEST_PATH, _DEEPEST = 1024, 100
_MOST_TEXT = 16 << 20
_WIDEST_NUMBER = 16


class Arrays:
    """What an open file holds.

    Attributes:
      shapes: The shape of every array of numbers, by its path.
      names: The names of groups that have one, by path; Keras notes there how a layer was called.
    """

    def __init__(self, file: h5py.File, path: Path) -> None:
        self._file, self._path = file, path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.names: dict[str, str] = {}
        self._text = 0  # characters in all paths
        self._walk()

    def read(self, key: str) -> np.ndarray:
        """Returns one array."""
        dataset = self._file[key]
        with _readable(self._path):
            value = np.empty(dataset.shape, dataset.dtype)
            dataset.read_direct(value) if value.size else None
        return value.view(ml_dtypes.bfloat16) if value.dtype.kind == "V" else value

    def _walk(self) -> None:
        """Looks at everything once; a group may hold itself."""
        waiting: list[tuple[str, h5py.Group]] = [("", self._file)]
        visited = set()
        while waiting:
            path, group = waiting.pop()
            address = h5py.h5o.get_info(group.id).addr
            if address in visited:
                continue
            visited.add(address)
            if (name := _name(group)) is not None:
                self.names[path] = name
            for child in sorted(group):
                self._look(f"{path}/{child}" if path else child, group, child, waiting)

    def _look(self, path: str, group: h5py.Group, name: str, waiting: list[tuple[str, h5py.Group]]) -> None:
        self._refuse_long(path)
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise self._refused(f"{path!r} in it is a link")
        child = group[name]
        if isinstance(child, h5py.Group):
            waiting.append((path, child))
        elif isinstance(child, h5py.Dataset):
            self._refuse_elsewhere(path, child)
            if _is_numbers(child):
                self.shapes[path] = tuple(child.shape)

    def _refuse_long(self, path: str) -> None:
        """A file may say in few bytes what has very long names: a group within a group, over and over."""
        self._text += len(path)
        if len(path) > _LONGEST_PATH or path.count("/") > _DEEPEST:
            raise self._refused(f"{path[:60] + '…'!r} in it is nested too deep")
        if self._text > _MOST_TEXT:
            raise self._refused("it holds far more than a model has")

    def _refuse_elsewhere(self, path: str, dataset: h5py.Dataset) -> None:
        properties = dataset.id.get_create_plist()
        if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
            raise self._refused(f"{path!r} in it is stored in another file")
        if properties.get_nfilters():
            raise self._refused(f"{path!r} in it is packed, which Keras does not do: save the weights anew")
        if dataset.chunks and any(chunk > size for chunk, size in zip(dataset.chunks, dataset.shape, strict=True)):
            raise self._refused(f"{path!r} in it is stored in pieces larger than itself")

    def _refused(self, reason: str) -> UsageError:
        return UsageError(f"{KEY}: {str(self._path)!r} is refused: {reason}")


@contextlib.contextmanager
def opened(file: Path | IO[bytes], path: Path) -> Iterator[Arrays]:
    """Yields the arrays of a file.

    Args:
      file: The file, or one that is open.
      path: How it is called in messages.

    Raises:
      UsageError: It is broken, or refers to other files.
    """
    with contextlib.ExitStack() as stack:
        with _readable(path):
            arrays = Arrays(stack.enter_context(h5py.File(file, "r")), path)
        yield arrays


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except UsageError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError, OverflowError, MemoryError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(f"{KEY}: {str(path)!r} cannot be read: {reason}") from error


def _is_numbers(dataset: h5py.Dataset) -> bool:
    dtype: Any = dataset.dtype
    is_brain_float = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None
    return dtype.itemsize <= _WIDEST_NUMBER and dtype.subdtype is None and (dtype.kind in "biufc" or is_brain_float)


def _name(group: h5py.Group) -> str | None:
    """Returns the attribute `name`, if it is a short text."""
    if not h5py.h5a.exists(group.id, b"name"):
        return None
    attribute = h5py.h5a.open(group.id, b"name")
    if attribute.shape != () or attribute.dtype.kind not in "OS" or attribute.dtype.itemsize > _LONGEST_NAME:
        return None
    value = group.attrs["name"]
    return value[:_LONGEST_NAME] if isinstance(value, str) else None
