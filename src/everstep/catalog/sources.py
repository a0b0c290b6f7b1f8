"""Catalog files as one tree: later ones over earlier ones, references answered, short forms written out."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from everstep.catalog.entries import is_entry
from everstep.config import interpolation
from everstep.config.layer import Layer, last_setter
from everstep.config.overrides import nested
from everstep.config.problem import ConfigError, Problem, join
from everstep.storage import PathLike


def read(paths: Iterable[PathLike]) -> tuple[dict[str, Any], Callable[[str], str]]:
    """Returns the tree of entries that files describe, and what tells where a value in it is written.

    Args:
      paths: The files; what a later one says of a name counts, key by key. Only a path in it means another filepath.

    Raises:
      UsageError: A file cannot be read, is malformed, or has references that lead nowhere.
    """
    layers = [_nested(Layer.from_file(path)) for path in paths]
    answered = _answered(layers)
    tree = _merged([_written_out(layer.tree) for layer in answered])

    def origin(path: str) -> str:
        layer = last_setter(layers, path) or last_setter(layers, path.rpartition(".")[0])
        return layer.origin_of(path) if layer else ""

    return tree, origin


def _answered(layers: Sequence[Layer]) -> Sequence[Layer]:
    if not interpolation.is_used(layers):
        return layers
    constant = _merged([layer.tree for layer in interpolation.constants(layers)])
    return interpolation.resolve(layers, constant)


def _nested(layer: Layer) -> Layer:
    """Returns a layer whose names with dots are groups: `mnist.raw: …` is `mnist: {raw: …}`."""
    tree: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in _leaves(layer.tree):
        if name in seen:
            raise ConfigError([Problem(name, "the name is given twice", layer.origin_of(name))])
        seen.add(name)
        tree = _merged([tree, nested(name, value)])
    return dataclasses.replace(layer, tree=tree)


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value that is no group of names."""
    for key, value in tree.items():
        name = join(path, str(key))
        if isinstance(value, Mapping) and value and not is_entry(value):
            yield from _leaves(value, name)
        else:
            yield name, value


def _written_out(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a tree in which every path has become an entry."""
    return {key: value if str(key).startswith("_") else _long_form(value) for key, value in tree.items()}


def _long_form(value: Any) -> Any:
    if isinstance(value, str):
        return {"filepath": value}
    if isinstance(value, Mapping) and not is_entry(value):
        return _written_out(value)
    return value


def _merged(trees: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    whole: dict[str, Any] = {}
    for tree in trees:
        for key, value in tree.items():
            held = whole.get(key)
            both = isinstance(held, Mapping) and isinstance(value, Mapping)
            whole[key] = _merged([held, value]) if both else value  # type: ignore[list-item]
    return whole
