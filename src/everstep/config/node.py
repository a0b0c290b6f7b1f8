"""Typed attributes: what a config stores, and what it refuses to store."""

import copy
import dataclasses
import difflib
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar, get_origin

import pydantic_core
from pydantic_core import core_schema

from everstep import redaction
from everstep.config.alternatives import check_declaration, given_way, given_way_in_construction
from everstep.config.checking import field_types, own_annotations
from everstep.config.declined import Declined, declined_by
from everstep.config.problem import ConfigError, Problem, join, show
from everstep.errors import UsageError, nearest

BUILD_KEYS = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
"""What `instantiate` reads; an open config holds them as it holds any key."""


class Node:
    """An object whose attributes are declared, typed and lockable; `Config` adds what a user calls.

    A subclass is a dataclass. A class that sets `_open` in its own body takes any attribute instead; that
    makes a tree of plain dicts readable with dots.

    What a class says about its fields, in addition to what its base classes say:

    - `_alternatives`: groups of fields of which at most one has a value (see `everstep.config.alternatives`).
    - `_may_change`: fields that alter nothing in what a run computes, so that a resumed run may change them. One
      that holds a config covers all of it.
    - `_declined`: keys of other libraries that it has not, and why (see `everstep.config.declined`).
    - `_takes_number`: a plain number stands for the config that its `_from_number` makes of it.
    """

    _open = False
    _locked = False
    _restrictions: ClassVar[tuple[str, ...]] = ()
    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = ()
    _may_change: ClassVar[frozenset[str]] = frozenset()
    _declined: ClassVar[Mapping[str, Declined]] = {}
    _takes_number: ClassVar[bool] = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        annotations = own_annotations(cls)
        _refuse_bad_names(cls, annotations)
        for name, annotation in annotations.items():
            default = cls.__dict__.get(name)
            if isinstance(default, (Node, list, dict, set)) and not _is_class_var(annotation):
                setattr(cls, name, _own_copy(default))
        _refuse_unknown_names(cls, annotations)
        check_declaration(cls, cls._alternative_groups())

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._from_value)

    @classmethod
    def _from_value(cls, value: Any) -> "Node":
        """Returns `value` if it is one of these, or builds one from a mapping; in some classes from a number."""
        if isinstance(value, cls):
            return value
        if cls._takes_number and isinstance(value, numbers.Real) and not isinstance(value, bool):
            return cls._from_number(float(value))
        if not isinstance(value, Mapping):
            raise pydantic_core.PydanticCustomError("config", "not a config")
        return cls._from_mapping(value)

    @classmethod
    def _from_number(cls, value: float) -> "Node":
        """Returns what a plain number stands for, in a class that takes one."""
        raise NotImplementedError

    @classmethod
    def _from_mapping(cls, tree: Mapping[str, Any]) -> "Node":
        required = [f.name for f in _declared(cls) if _is_required(f)]
        missing = [Problem(name, "is required") for name in required if name not in tree]
        if missing:
            raise ConfigError(missing)
        rest = {key: value for key, value in tree.items() if key not in required}
        return cls(rest, **{name: tree[name] for name in required})  # type: ignore[call-arg]

    @classmethod
    def _alternative_groups(cls) -> list[tuple[str, ...]]:
        return [group for base in cls.__mro__ for group in base.__dict__.get("_alternatives", ())]

    @classmethod
    def _changeable(cls) -> set[str]:
        """Returns the fields that a resumed run may change."""
        return {name for base in cls.__mro__ for name in base.__dict__.get("_may_change", ())}

    def _is_open(self) -> bool:
        return "_open" in type(self).__dict__

    def _names(self) -> list[str]:
        """Returns the names of the values held: declared fields, then what an open config was given."""
        declared = list(field_types(type(self)))
        given = [name for name in self.__dict__ if not _is_private(name)] if self._is_open() else []
        return declared + given

    def _emitted(self) -> list[str]:
        """Returns the names that are in use: those that `as_dict` reports and `validate` checks."""
        return self._names()

    def _children(self, names: Iterable[str]) -> Iterator[tuple[str, Any]]:
        """Yields the configs held under `names` with their key paths, also from inside lists and dicts."""
        for name in names:
            yield from nodes_in(getattr(self, name), name)

    def _convert(self, name: str, value: Any) -> Any:
        """Returns `value` as attribute `name` stores it.

        Raises:
          ConfigError: There is no such attribute, or the value has another type.
        """
        types = field_types(type(self))
        if name in types:
            try:
                return types[name].convert(value)
            except ConfigError as error:
                raise ConfigError([p.under(name) for p in error.problems]) from None
        self._require_free(name, value)
        return _opened(type(self), value)

    def _require_free(self, name: str, value: Any) -> None:
        if _is_private(name) or hasattr(type(self), name) or name == "BUILDER":  # of `bind`
            raise ConfigError([Problem(name, "is a reserved name")])
        if not self._is_open():
            raise ConfigError([self._unknown(name, value)])

    def _passes_over(self, name: str, value: Any) -> bool:
        """Tells whether this is a key that the class has not, with a value that asks for nothing."""
        declined = declined_by(type(self))
        return name not in self._names() and name in declined and declined[name].passes(value)

    def _unknown(self, name: str, value: Any) -> Problem:
        if name in (declined := declined_by(type(self))):
            return declined[name].problem(name, value)
        for meant in difflib.get_close_matches(name, self._names()):
            redaction.learn({meant: value})  # after "pasword" there is a password, too
        hint = _hint_below(self, name, value) or nearest(name, self._names())
        hint += "; to add it, write + before the whole key" if self._is_open() else ""
        return Problem(name, f"unknown key (received {show(value)}); {hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        self._require_unlocked(name)
        try:
            converted = self._convert(name, value)
            cleared = self._given_way(name, converted)
        except ConfigError as error:
            raise ConfigError(error.problems, owner=type(self).__name__) from None
        object.__setattr__(self, name, converted)
        for other in cleared:
            object.__setattr__(self, other, None)

    def _given_way(self, name: str, value: Any) -> list[str]:
        """Returns the alternatives of `name` that become None when it is set."""
        groups = self._alternative_groups()
        if name in self.__dict__:
            return given_way(groups, {name: value})
        return given_way_in_construction(type(self), groups, {**self.__dict__, name: value}, name)

    def __delattr__(self, name: str) -> None:
        self._require_unlocked(name)
        if name in field_types(type(self)) or name not in self._names():
            raise ConfigError([Problem(name, "cannot be deleted")], owner=type(self).__name__)
        object.__delattr__(self, name)

    def _require_unlocked(self, name: str) -> None:
        if self._locked:
            text = "the config is locked; change a copy instead: config.replace(...)"
            raise ConfigError([Problem(name, text)], owner=type(self).__name__)

    def _set_locked(self, locked: bool) -> None:
        for _, child in self._children(self._names()):
            child._set_locked(locked)
        object.__setattr__(self, "_locked", locked)


def _is_private(name: str) -> bool:
    return name.startswith("_") and name not in BUILD_KEYS


def nodes_in(value: Any, path: str) -> Iterator[tuple[str, Node]]:
    """Yields the configs in a value and their key paths: itself, or those in its lists and dicts."""
    if isinstance(value, Node):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from nodes_in(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from nodes_in(item, join(path, str(key)))


def keys_like(config: Node, name: str) -> list[str]:
    """Returns the paths, below a config and in use, of the key whose name is nearest to a name it has not.

    `epochs` is `trainer.epochs` of an experiment. Empty where none is near, or a key of the config itself is nearer.
    """
    below = _paths_below(config)
    meant = difflib.get_close_matches(name, [*config._names(), *below], n=1, cutoff=0.7)
    return below[meant[0]][:3] if meant and meant[0] not in config._names() else []


def _paths_below(config: Node) -> dict[str, list[str]]:
    """Returns the keys of the configs that are in use below one, each with its paths; of all paths the shortest."""
    found: dict[str, list[str]] = {}
    level = list(config._children(config._emitted()))
    while level:
        above = set(found)
        for path, node in level:
            for key in node._emitted():
                if key not in above:
                    found.setdefault(key, []).append(join(path, key))
        level = [(join(path, key), child) for path, node in level for key, child in node._children(node._emitted())]
    return found


def _hint_below(config: Node, name: str, value: Any) -> str:
    """Returns what somebody may have meant who left out the way to a key."""
    paths = keys_like(config, name)
    for path in paths:
        redaction.learn({path.rpartition(".")[2]: value})
    given = f"={value}" if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return f"did you mean {' or '.join(repr(path + given) for path in paths)}?" if paths else ""


def _opened(cls: type[Node], value: Any) -> Any:
    """Returns a free value with its mappings turned into open configs, so that dots reach everything."""
    if isinstance(value, Mapping):
        return cls._from_value(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_opened(cls, item) for item in value)
    return value


def _own_copy(default: Any) -> Any:
    """Returns a field whose every instance starts from its own copy of `default`."""

    def fresh() -> Any:
        value = copy.deepcopy(default)
        for _, node in nodes_in(value, ""):
            node._set_locked(False)
        return value

    return dataclasses.field(default_factory=fresh)


def _declared(cls: Any) -> tuple["dataclasses.Field[Any]", ...]:
    return dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()


def _is_required(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _is_class_var(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.startswith(("ClassVar", "typing.ClassVar"))
    return annotation is ClassVar or get_origin(annotation) is ClassVar


def _refuse_bad_names(cls: type[Node], annotations: Mapping[str, Any]) -> None:
    """Refuses what a dataclass would misread in silence: a default without its type, a hidden method."""
    bases = [base for base in cls.__mro__[1:] if issubclass(base, Node)]
    inherited = {f.name for base in bases for f in _declared(base)}
    for name in inherited & set(cls.__dict__) - set(annotations):
        raise UsageError(f"{cls.__qualname__}.{name}: annotate it, or the new default is ignored")
    taken = {name for base in bases for name in base.__dict__} - inherited
    for name, annotation in annotations.items():
        if (name in taken or name.startswith("_")) and not _is_class_var(annotation):
            raise UsageError(f"{cls.__qualname__}.{name}: is a reserved name; give the field another one")


def _refuse_unknown_names(cls: type[Node], annotations: Mapping[str, Any]) -> None:
    """Refuses `_alternatives` and `_may_change` that name no field."""
    fields = set(annotations) | {f.name for base in cls.__mro__[1:] for f in _declared(base)}
    named = {name for group in cls.__dict__.get("_alternatives", ()) for name in group}
    for name in sorted((named | set(cls.__dict__.get("_may_change", ()))) - fields):
        raise UsageError(f"{cls.__qualname__}: there is no field {name!r}; {nearest(name, fields)}")
