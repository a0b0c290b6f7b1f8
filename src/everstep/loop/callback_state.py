"""The state of callbacks and actions, so that a run can be resumed in another process.

A callback with `get_state()` and `set_state(state)` defines its state itself: a dict of plain values and arrays. For
all others it is found in their attributes: plain ones (numbers, strings, lists and dicts of them, arrays, random
generators) that have changed since construction are state; arguments, such as a patience or a file name, are not: a new
attempt may change them. Keras's own callbacks follow the same rule, except for the names below.
"""

import contextlib
import functools
import json
import logging
import os
import pathlib
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from everstep import redaction
from everstep.errors import UsageError
from everstep.loop.plain_values import NUMBERS, NotPlainError, decode, encode, fingerprint
from everstep.types import State

logger = logging.getLogger(__name__)

# By Keras class: attributes that change and are not state, because a new attempt sets them again. Setting `monitor_op`
# turns the sign of `min_delta`, too; if it were saved, it would be turned twice.
_NOT_STATE = {
    "Callback": {"params", "_model"},
    "MonitorCallback": {"monitor_op", "min_delta"},
    "CSVLogger": {"append", "append_header", "csv_file", "writer"},
    "OrbaxCheckpoint": {"checkpointer", "_async_futures"},
    "ProgbarLogger": {"epochs", "progbar", "seen", "target", "verbose"},
    "TensorBoard": {
        *("_batch_start_time", "_batch_trace_context", "_epoch_start_time", "_is_tracing", "_log_write_dir"),
        *("_prev_summary_state", "_previous_epoch_iterations", "_profiler_started", "_should_trace"),
        *("_should_write_train_graph", "_summary_module", "_train_accumulated_time", "_train_dir", "_val_dir"),
        "_writers",
    },
}

# Values of these types do not change, or do not belong to the callback.
_NO_MEMORY = (
    *(types.FunctionType, types.BuiltinFunctionType, types.MethodType, types.ModuleType, type),
    *(pathlib.PurePath, logging.Logger),
)


class CallbackState:
    """The state of a list of callbacks, or of actions; a part of a run's state, see `everstep.loop.hooks.StatePart`.

        state = CallbackState(callbacks)      # before any of them is called
        arrays, meta = state.state()          # {"callbacks/0.EarlyStopping/best_weights/0": …}, {"0.EarlyStopping": …}
        state.restore(arrays, meta)           # here or in another process, after on_train_begin

    Args:
      callbacks: The callbacks, before any of them is called.
      name: The key of the state, `callbacks` or `actions`.
    """

    def __init__(self, callbacks: Sequence[Any], name: str = "callbacks") -> None:
        self.name = name
        keys = [f"{index}.{type(callback).__name__}" for index, callback in enumerate(callbacks)]
        self._each = {key: _state_of(c, f"{name}/{key}") for key, c in zip(keys, callbacks, strict=True)}
        self._warned = False

    def observe(self) -> None:
        """Notes what `on_train_begin` has changed, and detects early what cannot be saved."""
        for each in self._each.values():
            each.observe()

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns arrays, and plain JSON values by callback; warns once about what cannot be saved."""
        arrays: State = {}
        meta = {key: each.get(arrays) for key, each in self._each.items()}
        if not self._warned:
            self._warn_of_unsaved()
        return {key: array.copy() for key, array in arrays.items()}, meta

    def check(self, meta: dict[str, Any]) -> None:
        """Checks that the state was saved by the same callbacks.

        Raises:
          UsageError: It was saved by others; names the differences.
        """
        difference = _difference(list(meta), list(self._each))
        changed = [key for key, each in self._each.items() if key in meta and each.form not in meta[key]]
        if not difference and changed:
            difference = f"{', '.join(changed)}: get_state and set_state were added or removed"
        if difference:
            raise UsageError(
                f"not those that the run was saved with ({difference})",
                key=self.name,
                remedy="pass the same ones in the same order, or start a new run in another directory",
            )

    def restore(self, arrays: State, meta: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self.check(meta)
        for key, each in self._each.items():
            each.set(arrays, meta[key])

    def restore_known(self, arrays: State, meta: dict[str, Any]) -> list[str]:
        """Restores what `state` returned for another list, as far as both contain the same callbacks.

        Two callbacks are the same if both are the first, or the second and so on, of their class name.

        Returns:
          The callbacks that were not saved: they start from scratch.
        """
        saved, here = (_in_order(keys) for keys in (meta, self._each))
        known = [name for name, key in here.items() if name in saved and self._each[key].form in meta[saved[name]]]
        for name in known:
            self._each[here[name]].set(arrays, meta[saved[name]])
        return [here[name] for name in here if name not in known]

    @contextlib.contextmanager
    def resuming(self) -> Iterator[None]:
        """Around the `on_train_begin` of a resumed attempt: files that it would overwrite are kept."""
        with contextlib.ExitStack() as stack:
            for each in self._each.values():
                if isinstance(each, CSVLoggerState):
                    stack.enter_context(each.resuming())
            yield

    def _warn_of_unsaved(self) -> None:
        self._warned = True
        for key, each in self._each.items():
            if each.unsaved:
                listed = ", ".join(f"{name} ({kind})" for name, kind in each.unsaved.items())
                logger.warning(
                    "%s: what %s keeps in %s cannot be saved and starts from scratch after a resume: give it "
                    "get_state() and set_state(state)",
                    *(self.name, key, listed),
                )


def owners(actions: Sequence[Callable[..., Any]]) -> list[Any]:
    """Returns the objects that can have state: the actions, or the objects whose methods they are, each once.

    Functions have none: a closure is not visible.
    """
    objects = [getattr(action, "__self__", action) for action in actions]
    stateless = (types.FunctionType, types.ModuleType, functools.partial, type)
    return list({id(o): o for o in objects if hasattr(o, "__dict__") and not isinstance(o, stateless)}.values())


class AttributeState:
    """The state of one callback, found in its attributes.

    Args:
      owner: The callback, as it was constructed.
      prefix: The prefix of its arrays, such as `callbacks/0.EarlyStopping`.

    Attributes:
      unsaved: Attributes that may be state and cannot be saved, with their types; known after the first `get`.
    """

    form = "attributes"

    def __init__(self, owner: Any, prefix: str) -> None:
        self.owner, self.prefix = owner, prefix
        self.unsaved: dict[str, str] = {}
        own = [cls.__name__ for cls in type(owner).__mro__ if is_keras(cls)]
        self._not_state = set().union(*(_NOT_STATE.get(name, ()) for name in own))
        self._initial, self._lists = {}, State()  # how attributes were constructed; the long lists of numbers in them
        for name, encoded, arrays in self._plain():
            self._initial[name] = fingerprint(encoded, arrays)
            self._lists |= {key: array for key, array in arrays.items() if key.endswith(NUMBERS)}
        self._changed: set[str] = set()

    def observe(self) -> None:
        """Notes what has changed so far: what `on_train_begin` resets is state, even if reset to its old value."""
        for name, encoded, arrays in self._plain():
            self._compare(name, encoded, arrays)

    def get(self, arrays: State) -> dict[str, Any]:
        """Returns the attributes that have ever changed, and the names of the others; adds arrays to `arrays`."""
        changed, unchanged = {}, []
        for name, encoded, own in self._plain():
            self._compare(name, encoded, own)
            if name in self._changed:
                changed[name] = encoded
                arrays |= own
            else:
                unchanged.append(name)
        return {"attributes": changed, "unchanged": unchanged}

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        """Sets the attributes; those that have changed only since the save get their initial values."""
        for name in self._changed.intersection(meta["unchanged"]):
            initial, sums = json.loads(self._initial[name])
            if all(key in self._lists for key, *_ in sums):
                setattr(self.owner, name, decode(initial, self._lists))
        for name, encoded in meta["attributes"].items():
            setattr(self.owner, name, decode(encoded, arrays))
            self._changed.add(name)

    def _compare(self, name: str, encoded: Any, arrays: State) -> None:
        if name not in self._changed and fingerprint(encoded, arrays) != self._initial.get(name):
            self._changed.add(name)

    def _plain(self) -> Iterator[tuple[str, Any, State]]:
        """Yields the attributes that can be saved: name, encoded value, arrays."""
        for name, value in list(getattr(self.owner, "__dict__", {}).items()):
            arrays: State = {}
            if name in self._not_state:
                continue
            try:
                encoded = encode(value, f"{self.prefix}/{name}", arrays)
            except NotPlainError as error:
                if self._may_be_state(value):
                    self.unsaved[name] = str(error)
                continue
            if redaction.tree({name: encoded}) == {name: encoded}:  # secrets are never saved
                yield name, encoded, arrays

    def _may_be_state(self, value: Any) -> bool:
        if isinstance(value, _NO_MEMORY) or is_keras(type(self.owner)) or _root(type(value)) == "everstep":
            return False
        return not any(value is part for part in _model_parts(getattr(self.owner, "_model", None)))


def _model_parts(model: Any) -> list[Any]:
    """Returns the model, its optimizer and its layers, whose variables are saved with the run."""
    return [] if model is None else [model, model.optimizer, *model._flatten_layers()]


def is_keras(cls: type) -> bool:
    """Whether a class is Keras's own; a user's subclass is not."""
    return _root(cls) == "keras"


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]


class CSVLoggerState(AttributeState):
    """A CSVLogger's state: its columns, and how long its file was.

    Its `on_train_begin` would overwrite the file. In a resumed attempt it appends instead, and rows written after the
    checkpoint are cut off: their epochs are trained again.
    """

    def get(self, arrays: State) -> dict[str, Any]:
        """Returns the columns and the file's length; the callback flushes each row."""
        return {**super().get(arrays), "bytes": self._size()}

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        """Cuts the file if it is open; it is closed once training is done."""
        super().set(arrays, meta)
        file = self.owner.csv_file
        if file is None or file.closed:
            return
        size = self._size()
        if size is None or meta["bytes"] is None or size < meta["bytes"]:
            logger.warning("CSVLogger: %r is not what the checkpoint left: rows may be missing", self.owner.filename)
        elif size > meta["bytes"]:
            os.truncate(self.owner.filename, meta["bytes"])
        self.owner.append_header = not self._size()

    @contextlib.contextmanager
    def resuming(self) -> Iterator[None]:
        """Inside the block the file is opened for appending."""
        append, self.owner.append = self.owner.append, True
        try:
            yield
        finally:
            self.owner.append = append

    def _size(self) -> int | None:
        """Returns the file's length; None if it does not exist, or is remote."""
        try:
            return os.path.getsize(self.owner.filename)
        except OSError:
            return None


class _OwnState:
    """The state of a callback with `get_state` and `set_state`."""

    form = "state"

    def __init__(self, owner: Any, prefix: str) -> None:
        self.owner, self.prefix = owner, prefix
        self.unsaved: dict[str, str] = {}

    def observe(self) -> None:
        """Checks that its state can be saved, before any step is trained."""
        self.get({})

    def get(self, arrays: State) -> dict[str, Any]:
        try:
            return {self.form: encode(self.owner.get_state(), self.prefix, arrays)}
        except NotPlainError as error:
            raise UsageError(
                f"returned an object of type {error}",
                key=f"{type(self.owner).__name__}.get_state()",
                remedy="return numbers, text, bools, None, NumPy arrays, and lists, tuples and dicts of them",
            ) from None

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        self.owner.set_state(decode(meta[self.form], arrays))


def _state_of(callback: Any, prefix: str) -> AttributeState | _OwnState:
    has = [name for name in ("get_state", "set_state") if callable(getattr(callback, name, None))]
    if len(has) == 1:
        other = "set_state" if has == ["get_state"] else "get_state"
        raise UsageError(f"has {has[0]} and no {other}", key=type(callback).__name__, remedy="define both, or none")
    if has:
        return _OwnState(callback, prefix)
    is_csv_logger = any(is_keras(cls) and cls.__name__ == "CSVLogger" for cls in type(callback).__mro__)
    return (CSVLoggerState if is_csv_logger else AttributeState)(callback, prefix)


def _in_order(keys: Iterable[str]) -> dict[tuple[str, int], str]:
    """Returns keys `<index>.<class>` by class, and by their position among those of the class."""
    named: dict[tuple[str, int], str] = {}
    for key in sorted(keys, key=_index):
        name = key.partition(".")[2]
        named[name, sum(before == name for before, _ in named)] = key
    return named


def _index(key: str) -> int:
    return int(key.partition(".")[0])


def _difference(saved: list[str], here: list[str]) -> str:
    """Describes the differences between two lists of `<index>.<class>`; empty if they are equal."""
    saved = sorted(saved, key=_index)
    if saved == here:
        return ""
    then, now = (Counter(key.partition(".")[2] for key in keys) for keys in (saved, here))
    parts = {"missing": then - now, "unexpected": now - then}
    differences = [f"{word}: {', '.join(names.elements())}" for word, names in parts.items() if names]
    return "; ".join(differences) or f"order then: {', '.join(saved)}; now: {', '.join(here)}"
