"""`~key`: taking a key out of a config."""

from collections.abc import Mapping
from typing import Any

from everstep.config.checking import field_types
from everstep.config.node import Node
from everstep.config.problem import ConfigError, Problem
from everstep.errors import nearest


def drop(config: Node, path: str) -> None:
    """Removes a key from an open config or from a dict in the tree.

    Raises:
      ConfigError: There is no such key, or a class declares it.
    """
    *parents, name = path.split(".")
    holder: Any = config
    for parent in parents:
        _require(holder, parent, path)
        holder = _keys(holder)[parent]
    _require(holder, name, path)
    if isinstance(holder, dict):
        del holder[name]
    elif name in field_types(type(holder)):
        text = f"{type(holder).__name__} declares it, so it cannot be dropped; set it to null or another value"
        raise ConfigError([Problem(path, text)])
    else:
        delattr(holder, name)


def _require(holder: Any, name: str, path: str) -> None:
    if name not in _keys(holder):
        raise ConfigError([Problem(path, f"no such key to drop; {nearest(name, _keys(holder))}")])


def _keys(holder: Any) -> Mapping[str, Any]:
    if isinstance(holder, Node):
        return {name: getattr(holder, name) for name in holder._names()}
    return holder if isinstance(holder, Mapping) else {}
