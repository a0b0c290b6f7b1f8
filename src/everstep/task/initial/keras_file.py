"""Reads weights from `.keras` and `.weights.h5` files.

Of a `.keras` file only the weights are read: its description of layers, which may contain code, is ignored. Keras
defines the layout of the weights. So Keras saves the model into a store that only records the paths, and loads it from
a store that has the arrays of the file where they fit, and those of the model elsewhere.
"""

import contextlib
import itertools
import lzma
import re
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import h5py
import keras
import ml_dtypes
import numpy as np

from everstep.errors import UsageError
from everstep.keras_internals import saving_lib
from everstep.task.initial.matching import Naming, Plan, automatic_names, best, model_weights, report_of, unnumbered

_WEIGHTS_FILE = "model.weights.h5"
_VARS = "vars"
_OLD_LAYERS = "_layer_checkpoint_dependencies"  # the name of `layers` in Keras 2.13
_PIECE = 1 << 20
_BROKEN = (
    *(zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, RuntimeError, ValueError, OverflowError, MemoryError),
)
_LONGEST_NAME = 4096
_LONGEST_PATH, _DEEPEST = 1024, 100
_MOST_TEXT = 16 << 20
_WIDEST_NUMBER = 16


def plan(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a file: by Keras's own paths or by the names of layers, whichever fits better.

    Raises:
      UsageError: The file is damaged or hostile.
    """
    layout = _Layout(model)
    with contextlib.ExitStack() as stack:
        limit = 4 * layout.size + (16 << 20)  # the weights, three slots of an optimizer for each, and some more
        arrays = stack.enter_context(_opened(paths[0], limit))
        match = best(layout.namings(arrays), layout.shapes, _candidates(arrays))
        report = report_of(match, paths[0], layout.shown)

        def apply() -> None:
            values = {key: arrays.read(other) for key, other in match.pairs.items()}
            _load(model, layout.notes, values, paths[0])

        return Plan(report, apply, stack.pop_all())


@contextlib.contextmanager
def _opened(path: Path, limit: int) -> Iterator["Arrays"]:
    """Yields the arrays of a file; an archive may unpack to at most `limit` bytes."""
    with contextlib.ExitStack() as stack:
        packed = path.name.endswith(".keras")
        file = stack.enter_context(archive_member(path, _WEIGHTS_FILE, limit)) if packed else path
        yield stack.enter_context(opened(file, path))


def _candidates(arrays: "Arrays") -> dict[str, tuple[int, ...]]:
    """Returns the arrays that may be weights of a model: not those of its compiled optimizer or metrics."""
    others = re.compile(r"(optimizer|compile_metrics|_?metrics|_loss_tracker)/")
    return {key: shape for key, shape in arrays.shapes.items() if not others.match(key)}


def _load(model: keras.Model, notes: "_Notes", values: Mapping[str, np.ndarray], path: Path) -> None:
    """Lets the layers load the values; if one of them fails, all of them load their previous values again."""
    before = {key: np.array(keras.ops.convert_to_numpy(value)) for key, value in notes.arrays() if key in values}
    try:
        saving_lib._load_state(model, _Store(notes, values), None, "", visited_saveables=set())
    except Exception as error:  # layers may have their own code to load
        with contextlib.suppress(Exception):
            saving_lib._load_state(model, _Store(notes, before), None, "", visited_saveables=set())
        raise UsageError(f"does not fit the model: {error}", received=str(path)) from error


class _Notes(saving_lib.H5IOStore):
    """A store that records what Keras would write, by path, without copying it."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Returns the dict in which an object puts its arrays."""
        self.names |= {_join(path, _VARS): metadata["name"]} if metadata else {}
        return self.entries.setdefault(path, {})

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """Yields the arrays that Keras would write, by their path in the file."""
        for path, entry in self.entries.items():
            yield from ((_join(path, _VARS, key), value) for key, value in entry.items())


class _Store(saving_lib.H5IOStore):
    """A store with some given arrays, and those of the model elsewhere."""

    def __init__(self, notes: _Notes, values: Mapping[str, np.ndarray]) -> None:
        self._notes, self._values = notes, values

    def __bool__(self) -> bool:
        return True

    def get(self, path: str) -> dict[str, Any]:
        """Returns the arrays of one object."""
        own = self._notes.entries.get(path, {})
        return {key: self._values.get(_join(path, _VARS, key), value) for key, value in own.items()}

    def has_path(self, path: str) -> bool:
        """Returns True: arrays that the file lacks come from the model."""
        return True


class _Layout:
    """The layout of the weights of a model in a Keras file.

    Attributes:
      notes: All arrays that Keras would write.
      shapes: The shapes of the weights among them, by path.
      shown: The names of the weights for reports, by path.
      size: The size of the weights in bytes.
    """

    def __init__(self, model: keras.Model) -> None:
        self.notes = _Notes()
        saving_lib._save_state(model, self.notes, None, "", set())
        called = {id(variable): name for name, variable in model_weights(model).items()}
        every = self.notes.arrays()
        kept = {path: value for path, value in every if id(value) in called or _is_own(path, value)}
        self.shapes = {path: tuple(value.shape) for path, value in kept.items() if 0 not in value.shape}
        self.shown = {path: called.get(id(value), path) for path, value in kept.items()}
        self.size = sum(int(np.prod(shape)) * 4 for shape in self.shapes.values())
        self._automatic = automatic_names(model)

    def namings(self, arrays: "Arrays") -> list[Naming]:
        """Returns the ways to match: by objects in the same order, and by the names of layers."""
        here, there = {path: path for path in self.shapes}, {path: _modern(path) for path in arrays.shapes}
        given = self._given(self.shapes, self.notes.names), self._given(arrays.shapes, arrays.names)
        ours, theirs = self._named(self.shapes, self.notes.names), self._named(arrays.shapes, arrays.names)
        return [Naming(here, there, called_here=given[0], called_there=given[1]), Naming(ours, theirs)]

    def _named(self, paths: Iterable[str], called: Mapping[str, str]) -> dict[str, str]:
        """Returns paths with the names of layers instead of Keras's numbers: `layers/head` for `layers/dense_1`."""
        spelled = {path: _spelled(path, called) for path in paths}
        ranked = unnumbered(spelled.values(), self._automatic)
        return {path: ranked[name] for path, name in spelled.items()}

    def _given(self, paths: Iterable[str], called: Mapping[str, str]) -> dict[str, str]:
        """Returns paths with the names that users gave to layers; layers without one keep their numbers."""
        given = {place: name for place, name in called.items() if re.sub(r"_\d+$", "", name) not in self._automatic}
        return {path: _spelled(path, given) for path in paths}


def _spelled(path: str, called: Mapping[str, str]) -> str:
    parts = path.split("/")
    groups = itertools.accumulate(parts, _join)
    spelled = (called.get(_join(group, _VARS), part) for group, part in zip(groups, parts, strict=True))
    return _modern("/".join(name.replace("/", "|") for name in spelled))


def _modern(path: str) -> str:
    return path.replace(_OLD_LAYERS, "layers")


def _is_own(path: str, value: Any) -> bool:
    """Returns whether a layer writes an array that is not a variable."""
    return not isinstance(value, keras.Variable) and hasattr(value, "shape") and not path.startswith("optimizer/")


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)


# -- archives that are not trusted ------------------------------------------------------------------------------------


@contextlib.contextmanager
def archive_member(path: Path, name: str, limit: int) -> Iterator[IO[bytes]]:
    """Yields one member of an archive, unpacked into an anonymous temporary file; names in the archive are never used.

    Args:
      path: The archive.
      name: The member to unpack.
      limit: The most bytes that it may unpack to; an uncompressed member may be as large as the archive.

    Raises:
      UsageError: The file is not an archive, lacks the member, unpacks to more, or has a name that leads outside.
    """
    with contextlib.ExitStack() as stack:
        try:
            archive = stack.enter_context(zipfile.ZipFile(path))
            _refuse_names(archive, path)
            file = stack.enter_context(tempfile.TemporaryFile())
            _copy(archive, archive.getinfo(name), file, max(limit, 0))
        except KeyError:
            raise UsageError(f"has no {name}, so it is not a model saved by Keras 3", received=str(path)) from None
        except UsageError:
            raise
        except _BROKEN as error:
            raise UsageError(f"cannot be read: {error}", received=str(path)) from error
        yield file


def _refuse_names(archive: zipfile.ZipFile, path: Path) -> None:
    names = [info.filename for info in archive.infolist()]
    for info in archive.infolist():
        name = info.filename
        parts = name.replace("\\", "/").split("/")
        if name.startswith(("/", "\\")) or ".." in parts or ":" in parts[0] or "\\" in name:
            raise UsageError(f"the name {name!r} in the archive leads outside of it", received=str(path))
        if stat.S_ISLNK(info.external_attr >> 16):
            raise UsageError(f"{name!r} in the archive is a link", received=str(path))
    if len(set(names)) != len(names):
        raise UsageError("the archive has a name twice", received=str(path))


def _copy(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: IO[bytes], limit: int) -> None:
    """Copies a member and checks its checksum; sizes that the archive declares are not trusted."""
    stored = info.compress_type == zipfile.ZIP_STORED
    left = info.compress_size if stored else limit
    with archive.open(info) as packed:
        while piece := packed.read(_PIECE):
            left -= len(piece)
            if left < 0:
                raise UsageError(
                    f"{info.filename} unpacks to more than {limit:,} bytes, far more than the model has; Keras itself "
                    "does not compress weights",
                    received=archive.filename,
                    remedy="save the weights again",
                )
            file.write(piece)
    file.seek(0)


# -- HDF5 files that are not trusted ----------------------------------------------------------------------------------

# HDF5 can refer to other files in many ways: links, external datasets, virtual datasets. Keras writes none of these, so
# a file that has one is refused before the reference is followed.


class Arrays:
    """The arrays of an open file.

    Attributes:
      shapes: The shape of every numeric array, by path.
      names: The `name` attributes of groups, by path; Keras stores the names of layers there.
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
        """Visits every group once; a group may contain itself."""
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
                self._visit(f"{path}/{child}" if path else child, group, child, waiting)

    def _visit(self, path: str, group: h5py.Group, name: str, waiting: list[tuple[str, h5py.Group]]) -> None:
        self._refuse_long(path)
        if not isinstance(group.get(name, getlink=True), h5py.HardLink):
            raise self._refused(f"{path!r} in the file is a link")
        child = group[name]
        if isinstance(child, h5py.Group):
            waiting.append((path, child))
        elif isinstance(child, h5py.Dataset):
            self._refuse_unusual(path, child)
            if _is_numbers(child):
                self.shapes[path] = tuple(child.shape)

    def _refuse_long(self, path: str) -> None:
        """Refuses deep nesting, with which a small file can have very long paths."""
        self._text += len(path)
        if len(path) > _LONGEST_PATH or path.count("/") > _DEEPEST:
            raise self._refused(f"{path[:60] + '…'!r} in the file is nested too deep")
        if self._text > _MOST_TEXT:
            raise self._refused("the file holds far more than a model has")

    def _refuse_unusual(self, path: str, dataset: h5py.Dataset) -> None:
        """Refuses ways to store a dataset that Keras does not use."""
        properties = dataset.id.get_create_plist()
        if properties.get_layout() == h5py.h5d.VIRTUAL or properties.get_external_count():
            raise self._refused(f"{path!r} is stored in another file")
        if properties.get_nfilters():
            raise self._refused(f"{path!r} is compressed, which Keras does not do", "save the weights again")
        if dataset.chunks and any(chunk > size for chunk, size in zip(dataset.chunks, dataset.shape, strict=True)):
            raise self._refused(f"{path!r} is stored in chunks larger than itself")

    def _refused(self, reason: str, remedy: str = "") -> UsageError:
        return UsageError(reason, received=str(self._path), remedy=remedy)


@contextlib.contextmanager
def opened(file: Path | IO[bytes], path: Path) -> Iterator[Arrays]:
    """Yields the arrays of a file.

    Args:
      file: The file, as a path or open.
      path: The path for error messages.

    Raises:
      UsageError: The file is damaged, or refers to other files.
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
        raise UsageError(f"cannot be read: {reason}", received=str(path)) from error


def _is_numbers(dataset: h5py.Dataset) -> bool:
    dtype: Any = dataset.dtype
    is_brain_float = dtype.kind == "V" and dtype.itemsize == 2 and dtype.names is None
    return dtype.itemsize <= _WIDEST_NUMBER and dtype.subdtype is None and (dtype.kind in "biufc" or is_brain_float)


def _name(group: h5py.Group) -> str | None:
    """Returns the attribute `name` of a group if it is a short text."""
    if not h5py.h5a.exists(group.id, b"name"):
        return None
    attribute = h5py.h5a.open(group.id, b"name")
    if attribute.shape != () or attribute.dtype.kind not in "OS" or attribute.dtype.itemsize > _LONGEST_NAME:
        return None
    value = group.attrs["name"]
    return value[:_LONGEST_NAME] if isinstance(value, str) else None
