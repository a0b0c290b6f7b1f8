"""Catalog files as entries by name: layered and interpolated as all configuration is, each entry checked.

A path alone is short for `{filepath: …}`; `mnist.raw: …` is short for `mnist: {raw: …}`. Of several files later ones
win, key by key. Names that start with an underscore exist for interpolation alone.
"""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from everstep.checkpoint.remote import checked, is_url, refuse_lost_slash
from everstep.config import Config, Layer, merge_trees, nested, origin_of, resolve_layers, walk
from everstep.errors import Problem, UsageError, join, problems_under
from everstep.projects.catalog.data_type import unknown_arguments
from everstep.projects.catalog.formats import SHIPPED, type_name
from everstep.storage import PathLike

_ALIKE = 0.8


@dataclasses.dataclass(kw_only=True)
class _EntryConfig(Config):
    """The keys of one name in a file."""

    filepath: str
    type: str | None = None
    load_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    save_args: dict[str, Any] = dataclasses.field(default_factory=dict)
    versioned: bool = False
    metadata: dict[Any, Any] = dataclasses.field(default_factory=dict)


_KEYS = tuple(field.name for field in dataclasses.fields(_EntryConfig))


@dataclasses.dataclass(frozen=True)
class Entry:
    """One name of a catalog.

    Attributes:
      name: `mnist.raw`.
      filepath: As written, interpolated: relative to the project's root, absolute, or a URL.
      type: A type of `formats.SHIPPED`, or a dotted name.
      load_args: For the type's `load`.
      save_args: For its `save`.
      versioned: Whether saving creates a new version.
      metadata: Further facts of the project's own.
      origin: File and line.
    """

    name: str
    filepath: str
    type: str
    load_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    save_args: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    versioned: bool = False
    metadata: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    origin: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Returns the entry as a catalog file has it, without keys at their defaults."""
        shown = {"type": self.type, "filepath": self.filepath}
        return shown | {key: value for key in _KEYS[2:] if (value := getattr(self, key))}


def read_layers(paths: Iterable[PathLike]) -> list[Layer]:
    """Returns the files as layers, with dotted names nested.

    Raises:
      UsageError: A file cannot be read, is malformed, or has a name twice.
    """
    return [_nested(Layer.from_file(path)) for path in paths]


def merge(layers: Iterable[Layer]) -> dict[str, Any]:
    """Returns the tree that layers describe: interpolated, every path an entry, names dropped that a layer drops.

    Raises:
      UsageError: A reference cannot be resolved.
    """
    tree: dict[str, Any] = {}
    for layer in resolve_layers(layers):
        if layer.edit != "drop":
            tree = merge_trees(tree, _long_form(layer.tree))
            continue
        for path, _ in walk(layer.tree):
            *groups, last = path.split(".")
            held = tree
            for group in groups:
                held = held[group] = dict(held[group])
            del held[last]
    return tree


def parse(tree: Mapping[str, Any], layers: Sequence[Layer]) -> dict[str, Entry]:
    """Returns the entries of a merged tree by their names.

    Raises:
      UsageError: All problems, each with its key path, file and line.
    """
    found, problems = dict[str, Entry](), list[Problem]()
    for name, value in _walk(tree, ""):
        try:
            config, kind = _checked_entry(value)
            found[name] = Entry(name=name, origin=_origin(layers, name), **{**config.as_dict(), "type": kind})
        except UsageError as error:
            wrong = problems_under(name, error)
            problems += [dataclasses.replace(problem, origin=_origin(layers, problem.key)) for problem in wrong]
    if problems:
        raise UsageError(problems)
    return found


def _origin(layers: Sequence[Layer], path: str) -> str:
    return origin_of(layers, path) or origin_of(layers, path.rpartition(".")[0])


def _checked_entry(value: Any) -> tuple[_EntryConfig, str]:
    """Returns an entry's values and the name of its type."""
    if not isinstance(value, Mapping):
        raise UsageError("expected a path, or the keys type and filepath", received=value)
    if "credentials" in value:
        remedy = "set them in the environment, as AWS_ACCESS_KEY_ID"
        raise UsageError("credentials are not part of a catalog", key="credentials", remedy=remedy)
    config = _EntryConfig.from_mapping(_given(value))
    problems: list[Problem] = []
    try:
        if not config.filepath.strip():
            raise UsageError("expected a path or a URL", key="filepath", received=config.filepath)
        refuse_lost_slash(config.filepath, "filepath")
        if is_url(config.filepath):
            checked(config.filepath, "filepath")
    except UsageError as error:
        problems += error.problems
    try:
        kind = type_name(config.type, config.filepath)
    except UsageError as error:
        raise UsageError([*problems, *problems_under("type", error)]) from None
    if kind in SHIPPED:
        problems += [one.under("load_args") for one in unknown_arguments(SHIPPED[kind], "load", config.load_args)]
        problems += [one.under("save_args") for one in unknown_arguments(SHIPPED[kind], "save", config.save_args)]
    if problems:
        raise UsageError(problems)
    return config, kind


def _given(value: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys that an entry sets; without `filepath`, an unknown key is reported, which may be that."""
    given = {str(key): item for key, item in value.items() if item is not None}
    unknown = [key for key in given if key not in _KEYS]
    return given if "filepath" in given or not unknown else {"filepath": ".", **given}


def _is_entry(value: Any) -> bool:
    """Returns whether a mapping describes data, and is not a group of names."""
    return isinstance(value, Mapping) and not set(_KEYS).isdisjoint(value)


def _walk(tree: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    """Yields entries with their names."""
    for key, value in tree.items():
        if str(key).startswith("_"):
            continue
        name = join(path, str(key))
        if isinstance(value, Mapping) and value and not _is_entry(value) and not _is_misspelt(value):
            yield from _walk(value, name)
        else:
            yield name, value


def _is_misspelt(group: Mapping[str, Any]) -> bool:
    """Returns whether a group of names is rather an entry whose keys are wrong."""
    return any(difflib.get_close_matches(str(key), _KEYS, n=1, cutoff=_ALIKE) for key in group)


def _nested(layer: Layer) -> Layer:
    """Returns a layer whose names with dots are groups: `mnist.raw: …` is `mnist: {raw: …}`."""
    tree: dict[str, Any] = {}
    seen: set[str] = set()
    for name, value in _leaves(layer.tree):
        if name in seen:
            raise UsageError("the name is given twice", key=name, origin=layer.origin_of(name))
        seen.add(name)
        tree = merge_trees(tree, nested(name, value))
    return dataclasses.replace(layer, tree=tree)


def _leaves(tree: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Yields every value that is not a group of names."""
    for key, value in tree.items():
        name = join(path, str(key))
        if isinstance(value, Mapping) and value and not _is_entry(value):
            yield from _leaves(value, name)
        else:
            yield name, value


def _long_form(value: Any, hidden: bool = False) -> Any:
    """Returns a tree in which every path is an entry."""
    if isinstance(value, str) and not hidden:
        return {"filepath": value}
    if isinstance(value, Mapping) and not _is_entry(value) and not _is_misspelt(value) and not hidden:
        return {key: _long_form(item, str(key).startswith("_")) for key, item in value.items()}
    return value
