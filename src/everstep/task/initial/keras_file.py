"""Weights out of `.keras` and `.weights.h5` files.

Of a `.keras` file only the weights are read: what it says of layers, which may be code, is not looked at. How weights
are laid out is Keras's business. So Keras writes the model into a store that only takes notes, and loads it from one
that has the file's arrays where they fit, and the model's own elsewhere.
"""

import contextlib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras.src.saving import saving_lib

from everstep.errors import UsageError
from everstep.task.initial import archive, hdf5, names
from everstep.task.initial.find import KEY
from everstep.task.initial.matching import Naming, best
from everstep.task.initial.plan import Plan, report_of

_WEIGHTS_FILE = "model.weights.h5"
_VARS = "vars"
_OLD_LAYERS = "_layer_checkpoint_dependencies"  # what Keras 2.13 called `layers`


def plan(model: keras.Model, paths: tuple[Path, ...]) -> Plan:
    """Matches a model with a file: by Keras's own paths, or by the names of layers, whichever fits better.

    Raises:
      UsageError: The file is broken or hostile.
    """
    layout = _Layout(model)
    with contextlib.ExitStack() as stack:
        arrays = stack.enter_context(_opened(paths[0], 4 * layout.size + (16 << 20)))
        match = best(layout.namings(arrays), layout.shapes, _candidates(arrays))
        report = report_of(match, paths[0], layout.shown)

        def apply() -> None:
            values = {key: arrays.read(other) for key, other in match.pairs.items()}
            _load(model, layout.notes, values, paths[0])

        return Plan(report, apply, stack.pop_all())


@contextlib.contextmanager
def _opened(path: Path, limit: int) -> Iterator[hdf5.Arrays]:
    """Yields the arrays; an archive may unpack to the weights, an optimizer's three slots for each, and some more."""
    with contextlib.ExitStack() as stack:
        packed = path.name.endswith(".keras")
        file = stack.enter_context(archive.member(path, _WEIGHTS_FILE, limit)) if packed else path
        yield stack.enter_context(hdf5.opened(file, path))


def _candidates(arrays: hdf5.Arrays) -> dict[str, tuple[int, ...]]:
    """Returns what may be weights of a model: not what belongs to the optimizer it was compiled with, or to metrics."""
    others = re.compile(r"(optimizer|compile_metrics|_?metrics|_loss_tracker)/")
    return {key: shape for key, shape in arrays.shapes.items() if not others.match(key)}


def _load(model: keras.Model, notes: "_Notes", values: Mapping[str, np.ndarray], path: Path) -> None:
    """Has the layers load; where one of them will not, all of them load once more what they had."""
    before = {key: np.array(keras.ops.convert_to_numpy(value)) for key, value in notes.arrays() if key in values}
    try:
        saving_lib._load_state(model, _Store(notes, values), None, "", visited_saveables=set())
    except Exception as error:  # layers may load by code of their own
        with contextlib.suppress(Exception):
            saving_lib._load_state(model, _Store(notes, before), None, "", visited_saveables=set())
        raise UsageError(f"{KEY}: {str(path)!r} does not fit the model: {error}") from error


class _Notes(saving_lib.H5IOStore):
    """A store that keeps what Keras would write, by path: nothing is copied."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, Any]] = {}
        self.names: dict[str, str] = {}

    def __bool__(self) -> bool:
        return True

    def make(self, path: str, metadata: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Returns where an object puts its arrays."""
        self.names |= {_join(path, _VARS): metadata["name"]} if metadata else {}
        return self.entries.setdefault(path, {})

    def arrays(self) -> Iterator[tuple[str, Any]]:
        """Yields what Keras would write, by the path it would have in the file."""
        for path, entry in self.entries.items():
            yield from ((_join(path, _VARS, key), value) for key, value in entry.items())


class _Store(saving_lib.H5IOStore):
    """A store that gives some arrays, and the model's own elsewhere."""

    def __init__(self, notes: _Notes, values: Mapping[str, np.ndarray]) -> None:
        self._notes, self._values = notes, values

    def __bool__(self) -> bool:
        return True

    def get(self, path: str) -> dict[str, Any]:
        """Returns the arrays of one object."""
        own = self._notes.entries.get(path, {})
        return {key: self._values.get(_join(path, _VARS, key), value) for key, value in own.items()}

    def has_path(self, path: str) -> bool:
        """Returns True: what the file does not have, the model has."""
        return True


class _Layout:
    """Where Keras keeps the weights of a model in a file.

    Attributes:
      notes: Everything that Keras would write.
      shapes: The shapes of the weights among it, by path.
      shown: What a person calls them.
      size: How many bytes they have.
    """

    def __init__(self, model: keras.Model) -> None:
        self.notes = _Notes()
        saving_lib._save_state(model, self.notes, None, "", set())
        called = {id(variable): name for name, variable in names.weights(model).items()}
        every = self.notes.arrays()
        kept = {path: value for path, value in every if id(value) in called or _is_own(path, value)}
        self.shapes = {path: tuple(value.shape) for path, value in kept.items() if 0 not in value.shape}
        self.shown = {path: called.get(id(value), path) for path, value in kept.items()}
        self.size = sum(int(np.prod(shape)) * 4 for shape in self.shapes.values())
        self._automatic = names.automatic_names(model)

    def namings(self, arrays: hdf5.Arrays) -> list[Naming]:
        """Returns the ways to match: the same objects in the same order; layers of the same names."""
        here, there = {path: path for path in self.shapes}, {path: _modern(path) for path in arrays.shapes}
        given = self._given(self.shapes, self.notes.names), self._given(arrays.shapes, arrays.names)
        ours, theirs = self._named(self.shapes, self.notes.names), self._named(arrays.shapes, arrays.names)
        return [Naming(here, there, called_here=given[0], called_there=given[1]), Naming(ours, theirs)]

    def _named(self, paths: Iterable[str], called: Mapping[str, str]) -> dict[str, str]:
        """Returns paths with the names of layers in them, where Keras has a number: `layers/dense_1` for `head`."""
        spelled = {path: _spelled(path, called) for path in paths}
        ranked = names.unnumbered(spelled.values(), self._automatic)
        return {path: ranked[name] for path, name in spelled.items()}

    def _given(self, paths: Iterable[str], called: Mapping[str, str]) -> dict[str, str]:
        """Returns paths with the names that people gave in them; the layers that have none keep their numbers."""
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
    """Returns whether a layer writes something of its own making, which is no variable."""
    return not isinstance(value, keras.Variable) and hasattr(value, "shape") and not path.startswith("optimizer/")


def _join(*parts: str) -> str:
    return "/".join(part for part in parts if part)
