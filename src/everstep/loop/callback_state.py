"""The state of callbacks and actions: what they must remember when a run goes on in another process.

One that has `get_state()` and `set_state(state)` says itself what that is: a dict of plain values and arrays. Of all
others it is found in their attributes; see `attribute_state.py`.
"""

import contextlib
import functools
import logging
import types
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from everstep.errors import UsageError
from everstep.loop.attribute_state import AttributeState, is_keras
from everstep.loop.csv_logger_state import CSVLoggerState
from everstep.loop.plain_values import NotPlainError, decode, encode
from everstep.types import State

logger = logging.getLogger(__name__)


class CallbackState:
    """The state of a list of callbacks, or of actions; a part of a run's state as in `everstep.loop.extra_state`.

        state = CallbackState(callbacks)      # as they were made
        arrays, meta = state.get()            # {"callbacks/0.EarlyStopping/best_weights/0": …}, {"0.EarlyStopping": …}
        state.set(arrays, meta)               # here or in another process, after on_train_begin

    Args:
      callbacks: They; all are to have been made, and none to have been called.
      name: What they are, `callbacks` or `actions`.
    """

    def __init__(self, callbacks: Sequence[Any], name: str = "callbacks") -> None:
        self.name = name
        keys = [f"{index}.{type(callback).__name__}" for index, callback in enumerate(callbacks)]
        self._each = {key: _state_of(c, f"{name}/{key}") for key, c in zip(keys, callbacks, strict=True)}
        self._said = False

    def look(self) -> None:
        """Notes what `on_train_begin` has changed, and finds out early what cannot be saved."""
        for each in self._each.values():
            each.look()

    def get(self) -> tuple[State, dict[str, Any]]:
        """Returns arrays, and plain JSON values by callback; says once what of them cannot be saved."""
        arrays: State = {}
        meta = {key: each.get(arrays) for key, each in self._each.items()}
        if not self._said:
            self._say_unsaved()
        return {key: array.copy() for key, array in arrays.items()}, meta

    def prepare(self, meta: dict[str, Any]) -> None:
        """Checks that what was saved is of these callbacks.

        Raises:
          UsageError: It is of others; says which.
        """
        difference = _difference(list(meta), list(self._each))
        changed = [key for key, each in self._each.items() if key in meta and each.form not in meta[key]]
        if not difference and changed:
            difference = f"{', '.join(changed)}: get_state and set_state were added or removed"
        if difference:
            raise UsageError(
                f"{self.name}: not those that the run was saved with ({difference}): pass the same ones in the same "
                "order, or start a new run in another directory"
            )

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        """Goes on from what `get` returned."""
        self.prepare(meta)
        for key, each in self._each.items():
            each.set(arrays, meta[key])

    def set_known(self, arrays: State, meta: dict[str, Any]) -> list[str]:
        """Goes on from what `get` returned of others, as far as they are the same.

        One is the same as one that was saved if both are the first, or the second and so on, of a class of one name.

        Returns:
          Those that were not saved: they start anew.
        """
        saved, here = (_in_order(keys) for keys in (meta, self._each))
        known = [name for name, key in here.items() if name in saved and self._each[key].form in meta[saved[name]]]
        for name in known:
            self._each[here[name]].set(arrays, meta[saved[name]])
        return [here[name] for name in here if name not in known]

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Around the `on_train_begin` of an attempt that goes on: what it would erase stays."""
        with contextlib.ExitStack() as stack:
            for each in self._each.values():
                if isinstance(each, CSVLoggerState):
                    stack.enter_context(each.going_on())
            yield

    def _say_unsaved(self) -> None:
        self._said = True
        for key, each in self._each.items():
            if each.unsaved:
                listed = ", ".join(f"{name} ({kind})" for name, kind in each.unsaved.items())
                logger.warning(
                    "%s: what %s keeps in %s cannot be saved and starts anew after a resume: give it get_state() and "
                    "set_state(state)",
                    *(self.name, key, listed),
                )


def remembering(actions: Sequence[Callable[..., Any]]) -> list[Any]:
    """Returns what of actions can have a state: objects, and those whose methods are the actions, each once.

    What a function's closure holds nobody can see.
    """
    owners = [getattr(action, "__self__", action) for action in actions]
    mute = (types.FunctionType, types.ModuleType, functools.partial, type)
    return list({id(o): o for o in owners if hasattr(o, "__dict__") and not isinstance(o, mute)}.values())


class _OwnState:
    """The state of one that says itself what it is."""

    form = "state"

    def __init__(self, owner: Any, prefix: str) -> None:
        self.owner, self.prefix = owner, prefix
        self.unsaved: dict[str, str] = {}

    def look(self) -> None:
        """Sees whether its state can be saved, before a step is lost to it."""
        self.get({})

    def get(self, arrays: State) -> dict[str, Any]:
        try:
            return {self.form: encode(self.owner.get_state(), self.prefix, arrays)}
        except NotPlainError as error:
            raise UsageError(
                f"{type(self.owner).__name__}.get_state() returned something with an object of type {error}: expected "
                "numbers, text, bools, None, NumPy arrays, and lists, tuples and dicts of them"
            ) from None

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        self.owner.set_state(decode(meta[self.form], arrays))


def _state_of(callback: Any, prefix: str) -> AttributeState | _OwnState:
    has = [name for name in ("get_state", "set_state") if callable(getattr(callback, name, None))]
    if len(has) == 1:
        other = "set_state" if has == ["get_state"] else "get_state"
        raise UsageError(f"{type(callback).__name__} has {has[0]} and no {other}: its state needs both")
    if has:
        return _OwnState(callback, prefix)
    is_csv_logger = any(is_keras(cls) and cls.__name__ == "CSVLogger" for cls in type(callback).__mro__)
    return (CSVLoggerState if is_csv_logger else AttributeState)(callback, prefix)


def _in_order(keys: Iterable[str]) -> dict[tuple[str, int], str]:
    """Returns keys `<index>.<class>` by the class, and by how many of it come before."""
    named: dict[tuple[str, int], str] = {}
    for key in sorted(keys, key=_index):
        name = key.partition(".")[2]
        named[name, sum(before == name for before, _ in named)] = key
    return named


def _index(key: str) -> int:
    return int(key.partition(".")[0])


def _difference(saved: list[str], here: list[str]) -> str:
    """Says what differs between two lists of `<index>.<class>`; nothing where they are one."""
    saved = sorted(saved, key=_index)
    if saved == here:
        return ""
    then, now = (Counter(key.partition(".")[2] for key in keys) for keys in (saved, here))
    parts = {"missing": then - now, "unexpected": now - then}
    said = [f"{word}: {', '.join(names.elements())}" for word, names in parts.items() if names]
    return "; ".join(said) or f"order then: {', '.join(saved)}; now: {', '.join(here)}"
