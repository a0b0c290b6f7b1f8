"""Paths of keys, such as `task.layers[0].units`, in configs and in the nested values that files hold."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from everstep.config.base import Config
from everstep.config.difference import ABSENT
from everstep.errors import join

_PART = re.compile(r"[^.\[\]]+|\[\d+\]")


def split_path(path: str) -> list[str]:
    """Returns the parts of a path: `["task", "layers", "[0]", "units"]`."""
    return _PART.findall(path)


def child(holder: Any, part: str) -> Any:
    """Returns the value of a config, a dict or a list for one part of a path, or ABSENT."""
    if isinstance(holder, list | tuple):
        index = int(part[1:-1]) if part.startswith("[") else len(holder)
        return holder[index] if index < len(holder) else ABSENT
    if isinstance(holder, Config):
        return getattr(holder, part) if part in holder._names() else ABSENT
    items = holder.items() if isinstance(holder, Mapping) else ()
    return next((value for key, value in items if str(key) == part), ABSENT)


def find_key(root: Any, path: str) -> Any:
    """Returns the value at a path, also in unused branches of a choice, or ABSENT."""
    for part in split_path(path) or [path]:
        root = child(root, part)
    return root


def is_below(path: str, keys: Iterable[str]) -> bool:
    """Returns whether a path is one of the keys, or below one of them."""
    return any(path == key or path.startswith((f"{key}.", f"{key}[")) for key in keys)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a tree with their paths; lists of plain values and empty containers are values."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        items = [(f"[{index}]", item) for index, item in enumerate(value)]
    else:
        yield path, value
        return
    for name, item in items:
        yield from leaves(item, join(path, name))


def all_paths(tree: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yields the path of every key of a tree, also of those that hold others."""
    for name, value in tree.items():
        where = join(path, str(name))
        yield where
        if isinstance(value, Mapping):
            yield from all_paths(value, where)
