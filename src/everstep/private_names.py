"""Private names of classes that users subclass: a method of theirs that happens to have one is refused by name."""

import functools
import inspect
import re

from everstep.errors import UsageError

_PRIVATE = re.compile(r"_[a-zA-Z]\w*")


def refuse_private_names(cls: type) -> None:
    """Refuses a class of a user that defines what a class of Everstep above it uses for itself.

    Call it in `__init_subclass__`. Without it, such a method would take the place of ours, and fail far from here.

    Raises:
      UsageError: It defines a private method or attribute of one of its base classes.
    """
    if _is_ours(cls):
        return
    for base in filter(_is_ours, cls.__mro__):
        for name in sorted(vars(cls).keys() & _private_names(base)):
            raise UsageError(
                f"is a name that {base.__name__} uses itself",
                key=f"{cls.__name__}.{name}",
                remedy=f"choose another one, such as my{name}",
            )


def _is_ours(cls: type) -> bool:
    return cls.__module__.partition(".")[0] == __package__


@functools.cache
def _private_names(cls: type) -> frozenset[str]:
    """Returns the private names of a class: what it defines, and what its `__init__` sets on the instance."""
    names, init = set(vars(cls)), vars(cls).get("__init__")
    if inspect.isfunction(init):
        names |= set(init.__code__.co_names) - init.__globals__.keys()
    return frozenset(name for name in names if _PRIVATE.fullmatch(name) and not name.startswith(f"_{cls.__name__}__"))
