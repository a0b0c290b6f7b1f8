"""Replaces functions of Keras and of the backends, for the code of one thread.

    with replaced(keras.Variable, "assign", watched_assign):
        ...  # in this thread, `assign` of every variable is `watched_assign`

A program may train a model in each of several threads: what one of them replaces must not change what another one does.
So while any thread replaces an attribute, its owner has a function that looks up what the calling thread has put in its
place. A step that runs on several devices runs in a thread for each: these use what the thread that started them has
replaced (`acting_for`).
"""

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any

_MISSING = object()


@contextlib.contextmanager
def replaced(owner: Any, name: str, replacement: Any) -> Iterator[None]:
    """Replaces an attribute of a class or a module inside the block, for this thread.

    Args:
      owner: The class or module.
      name: The attribute: a function, or a property, which may be missing.
      replacement: Takes its place, and is of the same kind. What it replaces is returned by `current`; ask for that
        before the block.
    """
    thread = this_thread()
    with _changing:
        attribute = _attributes.get((id(owner), name))
        if attribute is None:
            attribute = _attributes[id(owner), name] = _Attribute(owner, name, isinstance(replacement, property))
        attribute.replacements.setdefault(thread, []).append(replacement)
    try:
        yield
    finally:
        with _changing:
            attribute.replacements[thread].pop()
            if not attribute.replacements[thread]:
                del attribute.replacements[thread]
            if not attribute.replacements:
                attribute.restore()
                del _attributes[id(owner), name]


@contextlib.contextmanager
def replaced_in_all_threads(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    """Replaces an attribute inside the block for every thread: for code that also runs in threads of the backend.

    Of several threads that are inside at once, the first one replaces it, and the last one restores it.

    Args:
      owner: The class or module.
      name: The attribute, a function.
      make: Called with the original; returns what takes its place, the same for every thread.
    """
    key = (id(owner), name)
    with _changing:
        if key not in _everywhere:
            _everywhere[key] = [getattr(owner, name), 0]
            setattr(owner, name, make(_everywhere[key][0]))
        _everywhere[key][1] += 1
    try:
        yield
    finally:
        with _changing:
            _everywhere[key][1] -= 1
            if not _everywhere[key][1]:
                setattr(owner, name, _everywhere.pop(key)[0])


def current(owner: Any, name: str) -> Any:
    """Returns an attribute as this thread sees it: its own replacement, or the original."""
    attribute = _attributes.get((id(owner), name))
    return getattr(owner, name) if attribute is None else attribute.current()


def this_thread() -> int:
    """Returns the thread whose replacements the calling one uses: its own, unless it acts for another one."""
    return getattr(_acting, "thread", None) or threading.get_ident()


@contextlib.contextmanager
def acting_for(thread: int) -> Iterator[None]:
    """Inside the block the calling thread uses the replacements of another one, which waits for it."""
    before = getattr(_acting, "thread", None)
    _acting.thread = thread
    try:
        yield
    finally:
        _acting.thread = before


class _Attribute:
    """An attribute that at least one thread has replaced."""

    def __init__(self, owner: Any, name: str, is_property: bool) -> None:
        self._owner, self._name = owner, name
        self._own = vars(owner).get(name, _MISSING)  # missing where the owner inherits it
        self._original: Any = getattr(owner, name, _MISSING)
        self.replacements: dict[int, list[Any]] = {}  # by thread, the newest last
        setattr(owner, name, property(self._get) if is_property else self._function())

    def current(self) -> Any:
        replacements = self.replacements.get(this_thread())
        return replacements[-1] if replacements else self._original

    def restore(self) -> None:
        if self._own is _MISSING:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._own)

    def _function(self) -> Callable[..., Any]:
        @functools.wraps(self._original)
        def dispatched(*args: Any, **kwargs: Any) -> Any:
            return self.current()(*args, **kwargs)

        return dispatched

    def _get(self, instance: Any) -> Any:
        value = self.current()
        if value is _MISSING:
            raise AttributeError(f"{type(instance).__name__!r} object has no attribute {self._name!r}")
        return value.fget(instance)


_attributes: dict[tuple[int, str], _Attribute] = {}
_everywhere: dict[tuple[int, str], list[Any]] = {}  # the original, and how many threads are inside
_changing = threading.Lock()
_acting = threading.local()
