"""`instantiate`: builds the objects that a tree of plain values describes, in Hydra's spelling.

    model:
      _target_: my_project.models.Net
      units: 64
      activation: {_target_: keras.layers.ReLU}

Names are resolved by the allowlist alone (see `everstep.config.allowed`), all of them before anything is built.
Hydra's own `instantiate` is not used: it looks a callable up again by its name, and it reads `${...}` in the values
once more, which can bring in a `_target_` that was not checked. Here a text is a text.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

from everstep.config import allowed
from everstep.config.base import BUILD_KEYS, Config
from everstep.errors import Problem, UsageError, join, problems_under

Path: TypeAlias = tuple[Any, ...]
"""A place in a tree: keys of mappings and indices of lists."""

_SERIALIZED = {"config", "module", "registered_name"}


def instantiate(tree: Mapping[str, Any] | Config, /, **kwargs: Any) -> Any:
    """Returns the object that a tree describes.

    - `_target_`: the dotted name of a class or function, which is called with the other keys as its arguments.
      In a tree made in Python it may be the class or function itself.
    - `_args_`: a list of positional arguments.
    - `_partial_: true`: returns `functools.partial(target, ...)` in place of calling it.
    - `_recursive_: false`: hands nested descriptions to the target as they are.
    - `_convert_` is accepted: arguments are plain dicts and lists in any case.

    Args:
      tree: A mapping with a `_target_`; or without, and then a dict with the objects described below it.
      **kwargs: Further arguments of the outermost target, as they are; they win over those in the tree.

    Raises:
      UsageError: A line per problem, with its key path: names that are not allowed or do not exist, malformed
        keys, arguments that the target does not take.
    """
    plain = tree.as_dict() if isinstance(tree, Config) else tree
    if not isinstance(plain, Mapping):
        raise UsageError("expected a mapping with a _target_", key="instantiate", received=plain)
    if kwargs and "_target_" not in plain:
        raise UsageError(f"arguments {sorted(kwargs)} without a _target_ that takes them", key="instantiate")
    return _Builder(_targets(plain)).build_top(plain, kwargs)


def _targets(tree: Mapping[str, Any]) -> dict[Path, Callable[..., Any]]:
    """Returns what is to be called, by place in the tree; nothing is built unless all of it is in order."""
    rules, targets, problems = allowed.Allowed.here(), {}, []
    for path, node in _descriptions(tree, ()):
        try:
            _require_form(node)
            targets[path] = _target(node["_target_"], rules)
        except UsageError as error:
            problems += problems_under(join(_text(path), "_target_"), error)
    if problems:
        raise UsageError(problems)
    return targets


def _descriptions(value: Any, path: Path) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Yields every mapping with a `_target_`, with its place in the tree."""
    if isinstance(value, Mapping) and "_target_" in value:
        yield path, value
    for key, item in _items(value):
        yield from _descriptions(item, (*path, key))


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return enumerate(value) if isinstance(value, (list, tuple)) else ()


def _target(target: Any, rules: allowed.Allowed) -> Callable[..., Any]:
    if isinstance(target, str):
        target = allowed.resolve(target, rules)
    if not callable(target):
        raise UsageError("expected the dotted name of a class or function", received=target)
    return target


def _require_form(node: Mapping[str, Any]) -> None:
    """Refuses names of arguments that are none, steering keys of a wrong type, and Keras's own descriptions."""
    for key in node:
        if not isinstance(key, str):
            raise UsageError("the names of arguments must be text", received=key)
    if not isinstance(node.get("_args_", ()), (list, tuple)):
        raise UsageError("_args_ must be a list of arguments", received=node["_args_"])
    for key in ("_partial_", "_recursive_"):
        if not isinstance(node.get(key, True), bool):
            raise UsageError(f"{key} must be true or false", received=node[key])
    if any(map(_is_serialized, node.values())):
        reason = "an argument {class_name: …, config: …}, as Keras describes objects, is no _target_"
        raise UsageError(reason, remedy="describe it by a _target_")


def _is_serialized(value: Any) -> bool:
    """Returns whether a value holds a description by which Keras itself would build what was not checked."""
    if isinstance(value, Mapping) and "class_name" in value and _SERIALIZED & set(value):
        return True
    return any(_is_serialized(item) for _, item in _items(value))


class _Builder:
    """Builds a tree whose targets are known."""

    def __init__(self, targets: Mapping[Path, Callable[..., Any]]) -> None:
        self._targets = targets

    def build_top(self, tree: Mapping[str, Any], kwargs: Mapping[str, Any]) -> Any:
        """Builds the whole tree, with further arguments for its own target."""
        if () not in self._targets:
            return self._inside(tree, ())
        rest = {key: value for key, value in tree.items() if key not in kwargs}
        return self._call(rest, (), kwargs)

    def _build(self, value: Any, path: Path) -> Any:
        return self._call(value, path) if path in self._targets else self._inside(value, path)

    def _inside(self, value: Any, path: Path) -> Any:
        if isinstance(value, Mapping):
            return {key: self._build(item, (*path, key)) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self._build(item, (*path, index)) for index, item in enumerate(value))
        return value

    def _call(self, node: Mapping[str, Any], path: Path, given: Mapping[str, Any] = MappingProxyType({})) -> Any:
        target = self._targets[path]
        items = self._inside(node, path) if node.get("_recursive_", True) else node
        args = items.get("_args_", ())
        kwargs = {key: item for key, item in items.items() if key not in BUILD_KEYS} | dict(given)
        if node.get("_partial_", False):
            return functools.partial(target, *args, **kwargs)
        try:
            return target(*args, **kwargs)
        except (TypeError, ValueError) as error:
            name = getattr(target, "__qualname__", repr(target))
            raise UsageError([Problem(_text(path), f"{name} cannot be built: {error}")]) from error


def _text(path: Path) -> str:
    return functools.reduce(lambda text, key: join(text, f"[{key}]" if isinstance(key, int) else str(key)), path, "")
