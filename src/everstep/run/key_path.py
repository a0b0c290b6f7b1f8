"""Key paths such as `task.layers[0].units`: where they lead, and which lie below which."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from everstep.config.difference import ABSENT
from everstep.config.node import Node
from everstep.config.problem import join

_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")


def steps(path: str) -> list[str]:
    """Returns the parts of a path: `["task", "layers", "[0]", "units"]`."""
    return _STEP.findall(path)


def below(holder: Any, step: str) -> Any:
    """Returns what a config, a dict or a list holds under one part of a path, or ABSENT."""
    if isinstance(holder, list | tuple):
        index = int(step[1:-1]) if step.startswith("[") else len(holder)
        return holder[index] if index < len(holder) else ABSENT
    if isinstance(holder, Node):
        return getattr(holder, step) if step in holder._names() else ABSENT
    items = holder.items() if isinstance(holder, Mapping) else ()
    return next((value for key, value in items if str(key) == step), ABSENT)


def find(root: Any, path: str) -> Any:
    """Returns what a path leads to, also in branches of a choice that are not in use, or ABSENT."""
    for step in steps(path) or [path]:
        root = below(root, step)
    return root


def is_below(path: str, keys: Iterable[str]) -> bool:
    """Whether a path is one of the keys, or inside of what one of them holds."""
    return any(path == key or path.startswith((f"{key}.", f"{key}[")) for key in keys)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields the values of a tree with their paths; lists of plain values, and what is empty, are values."""
    if isinstance(value, Mapping) and value:
        items = [(str(key), item) for key, item in value.items()]
    elif isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value):
        items = [(f"[{index}]", item) for index, item in enumerate(value)]
    else:
        yield path, value
        return
    for name, item in items:
        yield from leaves(item, join(path, name))
