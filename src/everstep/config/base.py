"""`Config`, the base of every configuration dataclass: typed fields, merging, rules between values.

A class declares its fields as a dataclass does. These class attributes add to those of its bases:

- `_alternatives`: groups of fields of which at most one has a value, such as `(("train_steps", "epochs"),)`. Setting
  one of a group resets the others to None, so an override need not know which one was in use. Two at once, in one
  mapping or one call, is an error.
- `_may_change`: fields that do not change what a run computes, so that a resumed run may change them. A field that
  holds a config covers all of it.
- `_interchangeable`: for some fields, values between which a resumed run may change; not to or from others.
- `_declined`: keys of other libraries that this class does not have, and why.
- `_takes_number`: a plain number stands for the config that `_from_number` builds from it.
- `_open = True`, in the body of the class itself: any key is accepted in addition to the declared ones.
"""

import copy
import dataclasses
import difflib
import functools
import logging
import numbers
import operator
import os
import pathlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self, get_origin

import pydantic_core
from pydantic_core import core_schema

from everstep import redaction
from everstep.config import dialect, interpolation
from everstep.config.annotations import field_bounds, field_types, own_annotations
from everstep.config.layers import Layer
from everstep.errors import Problem, UsageError, join, nearest, problems_under, show

logger = logging.getLogger(__name__)

BUILD_KEYS = ("_target_", "_args_", "_partial_", "_recursive_", "_convert_")
"""What `instantiate` reads; an open config holds them as it holds any key."""


class Declined:
    """A key of another library that a config class does not have.

    A harmless value is skipped, so that a file which another library wrote, with every field in it, can be read as
    it is. Any other value is an error that explains the reason:

        class RuntimeConfig(Config):
            _declined = {"num_packs": Declined("gradients are summed in one piece", 1)}

        config.override({"num_packs": 1})  # nothing happens
        config.override({"num_packs": 2})  # UsageError: num_packs: received 2, but gradients are summed in one piece …

    Args:
      reason: Why there is no such setting, and what to use instead; a clause that follows `but`.
      *harmless: Values that request the default behaviour; None always does.
      label: Whether it is only a name for people, so that any text is harmless.
    """

    def __init__(self, reason: str, *harmless: Any, label: bool = False) -> None:
        self._reason, self._harmless, self._label = reason, harmless, label

    def is_harmless(self, value: Any) -> bool:
        """Returns whether a value requests nothing that is missing here."""
        same = any(type(value) is type(other) and value == other for other in self._harmless)
        return value is None or same or (self._label and isinstance(value, str))

    def problem(self, name: str, value: Any) -> Problem:
        """Returns the problem to report for any other value."""
        return Problem(name, f"but {self._reason}", received=value, remedy="remove it")


def declined_by(cls: type) -> Mapping[str, Declined]:
    """Returns what a class and its bases decline, by key."""
    found: dict[str, Declined] = {}
    for base in reversed(cls.__mro__):
        found |= base.__dict__.get("_declined", {})
    return found


@dataclasses.dataclass(repr=False)
class Config:
    """Typed settings with a name, a default and a docstring each.

        @dataclasses.dataclass
        class ModelConfig(Config):
            units: int = 32
            '''Width of the hidden layer.'''

        @dataclasses.dataclass
        class TaskConfig(Config):
            model: ModelConfig = ModelConfig()

        config = TaskConfig({"model": {"units": 64}})
        config.override({"model": {"unist": 8}})  # UsageError: model.unist: received 8, unknown key: …

    Types are checked whenever a value is stored: at construction, assignment and override. A dict given for a field
    annotated with a config class becomes that class, also inside Optional, list, tuple and dict. A default
    such as `ModelConfig()` or `[1, 2]` is copied for every instance.

    `Config` itself declares nothing and is open: `Config({"a": {"b": 1}}).a.b` reads a plain dict with dots.
    Names of methods and names that start with an underscore are reserved.

    Attributes:
      default_params: Values to start from, merged over the defaults and the keyword arguments.
      restrictions: Rules that `validate` checks, such as `["model.units > 0"]`.
    """

    _open = True
    _locked = False
    _restrictions: ClassVar[tuple[str, ...]] = ()
    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = ()
    _may_change: ClassVar[frozenset[str]] = frozenset()
    _interchangeable: ClassVar[Mapping[str, tuple[Any, ...]]] = {}
    _declined: ClassVar[Mapping[str, Declined]] = {}
    _takes_number: ClassVar[bool] = False

    default_params: dataclasses.InitVar[Mapping[str, Any] | None] = None
    restrictions: dataclasses.InitVar[Sequence[str] | None] = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        annotations = own_annotations(cls)
        _check_names(cls, annotations)
        for name, annotation in annotations.items():
            default = cls.__dict__.get(name)
            if isinstance(default, (Config, list, dict, set)) and not _is_class_var(annotation):
                setattr(cls, name, _copied_for_each(default))
        _check_groups(cls, annotations)

    def __post_init__(  # type: ignore[override]  # of arguments that are no fields
        self, default_params: Mapping[str, Any] | None, restrictions: Sequence[str] | None
    ) -> None:
        field_types(type(self))  # finds a forgotten decorator, even where no field is ever set
        object.__setattr__(self, "_restrictions", tuple(restrictions or ()))
        if default_params is not None:
            self.override(default_params, is_strict=False)

    # -- other ways to build one ------------------------------------------------------------------------------------

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Self:
        """Returns the defaults with the values of a file merged over them.

        The file is YAML, or JSON or TOML where its suffix says so. Interpolations in it refer to its own values; in
        `ExperimentConfig.from_yaml`, to the whole experiment.

        Raises:
          UsageError: The file cannot be read, or everything wrong in it, each with its line.
        """
        return cls._from_layer(interpolation.resolve_alone(Layer.from_file(path)))

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Same as `from_yaml`, which also reads JSON."""
        return cls.from_yaml(path)

    @classmethod
    def from_args(cls, *args: Any, **kwargs: Any) -> Self:
        """Returns a config from values for the fields that this class itself declares, in their order.

            ModelConfig.from_args(32, dropout=0.1)  # units, which comes first, and dropout

        Args:
          *args: Values by position; fields of base classes have none.
          **kwargs: Values by name, for any field.

        Raises:
          UsageError: Too many values, two for one field, or values that do not fit.
        """
        names = [name for name in own_annotations(cls) if name in field_types(cls)]
        if len(args) > len(names):
            known = f"declares {', '.join(names)}" if names else "declares no field"
            raise UsageError(f"received {len(args)} values, but the class {known}", key=f"{cls.__name__}.from_args")
        given = dict(zip(names, args, strict=False))
        twice = [Problem(name, "is given by position and by name") for name in given if name in kwargs]
        if twice:
            raise UsageError(twice, owner=cls.__name__)
        return cls._from_layer(Layer(f"{cls.__name__}.from_args", given | kwargs))

    @classmethod
    def _from_layer(cls, layer: Layer) -> Self:
        try:
            return cls.from_mapping(layer.tree)
        except UsageError as error:
            raise UsageError(layer.located(error.problems)) from None

    @classmethod
    def _from_value(cls, value: Any) -> Self:
        """Returns `value` if it is one of these, or builds one from a mapping; in some classes from a number."""
        if isinstance(value, cls):
            return value
        if cls._takes_number and isinstance(value, numbers.Real) and not isinstance(value, bool):
            return cls._from_number(float(value))
        if not isinstance(value, Mapping):
            raise pydantic_core.PydanticCustomError("config", "not a config")
        return cls.from_mapping(value)

    @classmethod
    def _from_number(cls, value: float) -> Self:
        """Returns what a plain number stands for, in a class that takes one."""
        raise NotImplementedError

    @classmethod
    def from_mapping(cls, tree: Mapping[str, Any]) -> Self:
        """Returns a config with the values of a plain mapping.

        Raises:
          UsageError: A field without a default is missing, or a value is wrong.
        """
        fields = dataclasses.fields(cls)
        required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
        missing = [Problem(name, "is required") for name in required if name not in tree]
        if missing:
            raise UsageError(missing)
        rest = {key: value for key, value in tree.items() if key not in required}
        return cls(rest, **{name: tree[name] for name in required})

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(cls._from_value)

    # -- what users call --------------------------------------------------------------------------------------------

    def override(self, override_params: "Mapping[str, Any] | Config", is_strict: bool = True) -> None:
        """Merges values into this config and the configs it holds, whatever their subclass.

        Dicts are merged key by key. A list replaces the list held, except that a list of configs takes as
        many dicts element by element; `layers[1]` as a key names one element, or the next one. All or
        nothing: a config that cannot take every value is left as it was.

        Args:
          override_params: Nested values by field name, or another config.
          is_strict: Unknown keys are errors. If False, an open `Config` takes them as new attributes; a class
            with declared fields never does.

        Raises:
          UsageError: One problem for each key that is unknown (with the nearest names), reserved, locked or of a
            wrong type.
        """
        if isinstance(override_params, Config):
            override_params = override_params.as_dict()
        if not isinstance(override_params, Mapping):
            raise UsageError("expected a dict of values", received=override_params)
        merge(self, override_params, is_strict)

    def as_dict(self) -> dict[str, Any]:
        """Returns the values as plain nested dicts and lists that share nothing with this config."""
        return {name: _plain(getattr(self, name)) for name in self._emitted()}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of `key`, or `default` where the config has no such key, as a dict does."""
        return getattr(self, key) if key in self else default

    def __contains__(self, key: object) -> bool:
        """Returns whether the config has a value under this key, be it None."""
        return key in self._names()

    def replace(self, **values: Any) -> Self:
        """Returns an unlocked deep copy with `values` merged into it; this config stays as it is."""
        new = copy.deepcopy(self)
        new._set_locked(False)
        new.override(values)
        return new

    def lock(self) -> None:
        """Refuses every later assignment, deletion and override, here and in every config held.

        Lists and dicts stay ordinary ones; the configs inside them are locked too.
        """
        self._set_locked(True)

    def validate(self) -> None:
        """Checks what types cannot express: restrictions, bounds, `_problems`, and `validate` of every config held.

        Raises:
          UsageError: One problem for each rule that does not hold.
        """
        names = self._emitted()
        problems = [problem for rule in self._restrictions if (problem := _broken_restriction(self, rule))]
        for path, child in self._children(names):
            try:
                child.validate()
            except ValueError as error:
                problems += problems_under(path, error)
        outside = [
            Problem(name, str(bounds), received=getattr(self, name))
            for name, bounds in field_bounds(type(self)).items()
            if name in names and not bounds.admits(getattr(self, name))
        ]
        rules = [] if problems else self._problems()  # they rely on what they read of the configs held
        outside += [problem for problem in rules if problem.key not in {known.key for known in outside}]
        if problems or outside:
            raise UsageError([*problems, *outside])

    def _problems(self) -> Iterator[Problem]:
        """Yields what is wrong with the values, by rules of this class; a subclass adds its own.

        `validate` calls it when all configs held are right. The fields of this config itself may be out of bounds.
        """
        yield from ()

    def to_yaml(self) -> str:
        """Returns the config as YAML; overriding the same defaults with it gives the same config."""
        return dialect.dump(dialect.escaped(self.as_dict()))

    def save_yaml(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_yaml()` to a local file."""
        pathlib.Path(path).write_text(self.to_yaml(), encoding="utf-8")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in _values(self).items())})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Returns a copy; as Python's own, but every run makes several, and most values need no call."""
        new = memo[id(self)] = type(self).__new__(type(self))
        new.__setstate__(
            {
                name: value if value is None or type(value) in _ATOMS else copy.deepcopy(value, memo)
                for name, value in self.__dict__.items()
            }
        )
        return new

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Sets all values of a copy."""
        vars(self).update(state)

    # -- what a config stores ---------------------------------------------------------------------------------------

    def _is_open(self) -> bool:
        return "_open" in type(self).__dict__

    def _names(self) -> list[str]:
        """Returns the names of the values held: declared fields, then what was added to an open config."""
        declared = list(field_types(type(self)))
        added = [name for name in self.__dict__ if name not in declared and not _is_private(name)]
        return declared + (added if self._is_open() else [])

    def _emitted(self) -> list[str]:
        """Returns the names that are in use: those that `as_dict` reports and `validate` checks."""
        return self._names()

    def _children(self, names: Iterable[str]) -> Iterator[tuple[str, "Config"]]:
        """Yields the configs held under `names` with their key paths, also from inside lists and dicts."""
        for name in names:
            yield from configs_in(getattr(self, name), name)

    @classmethod
    def _alternative_groups(cls) -> list[tuple[str, ...]]:
        return [group for base in cls.__mro__ for group in base.__dict__.get("_alternatives", ())]

    @classmethod
    def _changeable(cls) -> set[str]:
        """Returns the fields that a resumed run may change."""
        return {name for base in cls.__mro__ for name in base.__dict__.get("_may_change", ())}

    @classmethod
    def _are_interchangeable(cls, name: str, *values: Any) -> bool:
        """Returns whether a resumed run may change a field between these values."""
        known = [base.__dict__.get("_interchangeable", {}).get(name, ()) for base in cls.__mro__]
        return any(all(value in some for value in values) for some in known)

    def _convert(self, name: str, value: Any) -> Any:
        """Returns `value` as attribute `name` stores it.

        Raises:
          UsageError: There is no such attribute, or the value has another type.
        """
        types = field_types(type(self))
        if name in types:
            try:
                return types[name].convert(value)
            except UsageError as error:
                raise UsageError([problem.under(name) for problem in error.problems]) from None
        if _is_private(name) or hasattr(type(self), name) or name == "BUILDER":  # of `bind`
            raise UsageError("is a reserved name", key=name)
        if not self._is_open():
            raise UsageError(self._unknown(name, value))
        return _opened(type(self), value)

    def _unknown(self, name: str, value: Any) -> Problem:
        """Returns the problem of a key that this config does not have."""
        if name in (declined := declined_by(type(self))):
            return declined[name].problem(name, value)
        for meant in difflib.get_close_matches(name, self._names()):
            redaction.learn({meant: value})  # after "pasword" there is a password, too
        paths = keys_like(self, name)
        for path in paths:
            redaction.learn({path.rpartition(".")[2]: value})
        shown = f"={value}" if isinstance(value, int | float) and not isinstance(value, bool) else ""
        remedy = f"did you mean {' or '.join(repr(path + shown) for path in paths)}?" if paths else ""
        remedy = remedy or nearest(name, self._names())
        remedy += "; to add it, write + before the whole key" if self._is_open() else ""
        return Problem(name, "unknown key", received=value, remedy=remedy)

    def __setattr__(self, name: str, value: Any) -> None:
        self._require_unlocked(name)
        field_types(type(self))  # finds a forgotten decorator
        try:
            converted = self._convert(name, value)
            reset = self._reset_by(name, converted)
        except UsageError as error:
            raise UsageError(error.problems, owner=type(self).__name__) from None
        object.__setattr__(self, name, converted)
        for other in reset:
            object.__setattr__(self, other, None)

    def _reset_by(self, name: str, value: Any) -> list[str]:
        """Returns the alternatives of `name` that become None when it is set."""
        groups = self._alternative_groups()
        if name in self.__dict__:
            return reset_alternatives(groups, {name: value})
        # During construction fields are set one after the other, most of them to their defaults; defaults give way.
        held = {**self.__dict__, name: value}
        rivals = [other for group in groups if name in group for other in group if held.get(other) is not None]
        if name not in rivals or len(rivals) < 2:
            return []
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        passed = {other: held[other] for other in rivals if held[other] != defaults[other]}
        reset_alternatives([tuple(passed)], passed)
        kept = passed or {name}
        return [other for other in rivals if other not in kept]

    def __delattr__(self, name: str) -> None:
        self._require_unlocked(name)
        if name in field_types(type(self)) or name not in self._names():
            raise UsageError([Problem(name, "cannot be deleted")], owner=type(self).__name__)
        object.__delattr__(self, name)

    def _require_unlocked(self, name: str) -> None:
        if self._locked:
            raise UsageError([_locked_problem(name)], owner=type(self).__name__)

    def _set_locked(self, locked: bool) -> None:
        for _, child in self._children(self._names()):
            child._set_locked(locked)
        object.__setattr__(self, "_locked", locked)


_ATOMS = frozenset({bool, int, float, str})  # values that a copy shares

# -- merging -------------------------------------------------------------------------------------------------------


def merge(config: Config, tree: Mapping[str, Any], is_strict: bool = True, skip_unknown: bool = False) -> list[str]:
    """Merges a tree of values into a config, all of it or nothing; returns the keys that were skipped.

    Args:
      config: The config to change.
      tree: Nested values by field name.
      is_strict: See `Config.override`.
      skip_unknown: Skips keys that a class does not have; an open config takes them.

    Raises:
      UsageError: Everything wrong in the tree.
    """
    merger = _Merger(is_strict, skip_unknown)
    merger.visit(config, tree)
    merger.apply()
    return merger.skipped


class _Merger:
    """Plans every change that a tree requests, then makes all of them or none."""

    def __init__(self, is_strict: bool, skip_unknown: bool) -> None:
        self._is_strict, self._skip_unknown = is_strict, skip_unknown
        self.skipped: list[str] = []
        self._edits: dict[tuple[int, str], tuple[Config, str, Any]] = {}
        self._replaced: list[tuple[str, int, int]] = []
        self._problems: list[Problem] = []

    def visit(self, config: Config, tree: Mapping[str, Any], path: str = "") -> None:
        """Plans the changes of one config and of those below it."""
        if config._locked:
            self._problems.append(_locked_problem(path))
            return
        for key, value in tree.items():
            try:
                self._visit_key(config, str(key), value, path)
            except UsageError as error:
                self._problems += [problem.under(path) for problem in error.problems]
        try:
            for name in reset_alternatives(config._alternative_groups(), tree):
                self._edit(config, name, None)
        except UsageError as error:
            self._problems += [problem.under(path) for problem in error.problems]

    def apply(self) -> None:
        """Makes the planned changes.

        Raises:
          UsageError: There were problems; nothing was changed.
        """
        if self._problems:
            raise UsageError(self._problems)
        for config, name, value in self._edits.values():
            object.__setattr__(config, name, value)
        for lengths in self._replaced:
            _warn_replaced(*lengths)

    def _visit_key(self, config: Config, key: str, value: Any, path: str) -> None:
        indexed = re.fullmatch(r"(.+)\[(\d+)\]", key)
        name = indexed[1] if indexed else key
        if name in config._names():
            if indexed:
                self._visit_item(config, name, int(indexed[2]), value, path)
            else:
                self._visit_value(config, name, value, path)
            return
        declined = declined_by(type(config)).get(key)
        if declined is not None and declined.is_harmless(value):
            return
        if self._skip_unknown and not config._is_open():
            self.skipped.append(join(path, key))
            return
        converted = config._convert(key, value)
        if self._is_strict and not self._skip_unknown:
            raise UsageError(config._unknown(key, value))
        self._edit(config, key, converted)

    def _visit_value(self, config: Config, name: str, value: Any, path: str) -> None:
        held, where = self._held(config, name), join(path, name)
        if isinstance(held, Config) and isinstance(value, Mapping):
            self.visit(held, value, where)
        elif isinstance(held, Mapping) and isinstance(value, Mapping):
            self._visit_dict(config, name, held, value, where)
        elif _are_configs(held, value) and len(held) == len(value):
            for index, (item, tree) in enumerate(zip(held, value, strict=True)):
                self.visit(item, tree, f"{where}[{index}]")
        else:
            if _are_configs(held, value) and value:
                self._replaced.append((where, len(held), len(value)))
            self._edit(config, name, config._convert(name, value))

    def _visit_dict(
        self, config: Config, name: str, held: Mapping[str, Any], value: Mapping[str, Any], where: str
    ) -> None:
        """Plans the changes of a dict; the configs in it keep their class and what is not named."""
        inside = [key for key, tree in value.items() if isinstance(held.get(key), Config) and isinstance(tree, Mapping)]
        for key in inside:
            self.visit(held[key], value[key], join(where, str(key)))
        rest = {key: item for key, item in value.items() if key not in inside}
        if rest or not inside:
            self._edit(config, name, config._convert(name, _merged_dicts(held, rest)))

    def _visit_item(self, config: Config, name: str, index: int, value: Any, path: str) -> None:
        held = self._held(config, name)
        items = list(held) if isinstance(held, (list, tuple)) else []
        if index > len(items) or (held is not None and not isinstance(held, (list, tuple))):
            reason = f"no such element: {join(path, name)} is {show(held)}"
            raise UsageError(reason, key=f"{name}[{index}]", received=value)
        if index < len(items) and isinstance(items[index], Config) and isinstance(value, Mapping):
            self.visit(items[index], value, join(path, f"{name}[{index}]"))
            return
        items[index:] = [value, *items[index + 1 :]]
        self._edit(config, name, config._convert(name, items))

    def _held(self, config: Config, name: str) -> Any:
        """Returns the value as it will be after the changes planned so far."""
        planned = self._edits.get((id(config), name))
        return planned[2] if planned else getattr(config, name)

    def _edit(self, config: Config, name: str, value: Any) -> None:
        self._edits[id(config), name] = (config, name, value)


def drop(config: Config, path: str) -> None:
    """Removes a key from an open config or from a dict in the tree: `~key`.

    Raises:
      UsageError: There is no such key, or a class declares it.
    """
    holder: Any = None
    held: Any = config
    for last in path.split("."):
        holder = held
        keys = _values(holder) if isinstance(holder, Config) else holder if isinstance(holder, Mapping) else {}
        if last not in keys:
            raise UsageError("no such key to drop", key=path, remedy=nearest(last, keys))
        held = keys[last]
    if isinstance(holder, dict):
        del holder[last]
    elif last in field_types(type(holder)):
        reason = f"{type(holder).__name__} declares it, so it cannot be dropped"
        raise UsageError(reason, key=path, remedy="set it to null or another value")
    else:
        delattr(holder, last)


def reset_alternatives(groups: Iterable[tuple[str, ...]], values: Mapping[str, Any]) -> list[str]:
    """Returns the fields that become None where `values` are set.

    Raises:
      UsageError: Two alternatives have a value.
    """
    reset: list[str] = []
    for group in groups:
        given = [name for name in group if values.get(name) is not None]
        if len(given) > 1:
            *others, last = given
            beside = ", ".join(f"{name}={show(values[name])}" for name in others)
            reason = f"but {beside} is given, too, and they are alternatives"
            raise UsageError(reason, key=last, received=values[last], remedy="give one of them")
        reset += [name for name in group if given and name not in given]
    return reset


def _are_configs(held: Any, value: Any) -> bool:
    """Returns whether configs are held in a list, and mappings given for them."""
    if not isinstance(held, (list, tuple)) or not isinstance(value, (list, tuple)) or not held:
        return False
    return all(isinstance(item, Config) for item in held) and all(isinstance(item, Mapping) for item in value)


@functools.cache
def _warn_replaced(path: str, held: int, given: int) -> None:
    """Warns that a list was not merged; once, because the same values may be merged several times."""
    logger.warning(
        "%s: %d given for %d, so all are replaced and none is merged: what is not given has its class's default; "
        "%s[0] and so on change single ones",
        *(path, given, held, path),
    )


def _merged_dicts(held: Any, value: Any) -> Any:
    """Returns two dicts as one, the given values winning; anything else is replaced."""
    if not isinstance(held, Mapping) or not isinstance(value, Mapping):
        return value
    return {**held, **{key: _merged_dicts(held.get(key), item) for key, item in value.items()}}


# -- defaults ------------------------------------------------------------------------------------------------------


def class_defaults(cls: type[Config]) -> dict[str, Any]:
    """Returns the default of every field that has one, as an instance would hold it."""
    types = field_types(cls)
    found = {field.name: _default(field) for field in dataclasses.fields(cls)}
    return {name: types[name].convert(value) for name, value in found.items() if value is not dataclasses.MISSING}


def at_default(config: Config) -> set[str]:
    """Returns the key paths at which a config holds the defaults of its classes, including everything below.

    The defaults of a config that another one holds are those which the holder gives it: where `MnistConfig` has
    `train_data = DataConfig(global_batch_size=128)`, that is the default there. If it was given one of another
    class, they are those of that class.
    """
    return set(_at_default(_values(config), class_defaults(type(config)), ""))


def _at_default(values: Mapping[str, Any], defaults: Mapping[str, Any], path: str) -> Iterator[str]:
    for name, value in values.items():
        default, where = defaults.get(name, dataclasses.MISSING), join(path, str(name))
        if isinstance(value, Config):
            own = _values(default) if type(default) is type(value) else class_defaults(type(value))
            yield from _at_default(_values(value), own, where)
        elif value == default:
            yield where
        elif isinstance(value, Mapping) and isinstance(default, Mapping):
            yield from _at_default(value, default, where)
        else:
            for below, config in configs_in(value, where):
                yield from _at_default(_values(config), class_defaults(type(config)), below)


def _default(field: "dataclasses.Field[Any]") -> Any:
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


# -- values and names ----------------------------------------------------------------------------------------------


def configs_in(value: Any, path: str) -> Iterator[tuple[str, Config]]:
    """Yields the configs in a value and their key paths: itself, or those in its lists and dicts."""
    if value is None or type(value) in _ATOMS:
        return
    if isinstance(value, Config):
        yield path, value
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from configs_in(item, f"{path}[{index}]")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from configs_in(item, join(path, str(key)))


def walk_configs(config: Config, path: str = "") -> Iterator[tuple[str, Config]]:
    """Yields a config and all that it holds, each with its key path."""
    yield path, config
    for below, child in config._children(config._names()):
        yield from walk_configs(child, join(path, below))


def field_names(config: Config) -> list[str]:
    """Returns the names of the values that a config holds: its fields, then what was added to an open one."""
    return config._names()


def unknown_key(config: Config, name: str, value: Any) -> Problem:
    """Returns the problem of a key that a config does not have, with the nearest one."""
    return config._unknown(name, value)


def keys_like(config: Config, name: str) -> list[str]:
    """Returns the paths, below a config and in use, of the key whose name is nearest to an unknown one.

    `epochs` is `trainer.epochs` of an experiment. Empty where none is near, or a key of the config itself is nearer.
    """
    below: dict[str, list[str]] = {}  # of all paths to a key the shortest
    level = list(config._children(config._emitted()))
    while level:
        above = set(below)
        for path, node in level:
            for key in node._emitted():
                if key not in above:
                    below.setdefault(key, []).append(join(path, key))
        level = [(join(path, key), child) for path, node in level for key, child in node._children(node._emitted())]
    meant = difflib.get_close_matches(name, [*config._names(), *below], n=1, cutoff=0.7)
    return below[meant[0]][:3] if meant and meant[0] not in config._names() else []


def _values(config: Config) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config._names()}


def _plain(value: Any) -> Any:
    if value is None or type(value) in _ATOMS:
        return value
    if isinstance(value, Config):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return copy.copy(value)


def _opened(cls: type[Config], value: Any) -> Any:
    """Returns a free value with its mappings turned into open configs, so that dots reach everything.

    They are of the nearest open base of `cls` that declares no field.
    """
    if isinstance(value, Mapping):
        plain: Any = next(base for base in cls.__mro__ if "_open" in base.__dict__ and not dataclasses.fields(base))
        return plain._from_value(value)
    if isinstance(value, (list, tuple)):
        return type(value)(_opened(cls, item) for item in value)
    return value


def _is_private(name: str) -> bool:
    return name.startswith("_") and name not in BUILD_KEYS


def _locked_problem(key: str) -> Problem:
    return Problem(key, "the config is locked", remedy="change a copy: config.replace(...)")


# -- declarations of classes ---------------------------------------------------------------------------------------


def _copied_for_each(default: Any) -> Any:
    """Returns a field whose every instance starts from its own copy of `default`."""

    def fresh() -> Any:
        value = copy.deepcopy(default)
        for _, config in configs_in(value, ""):
            config._set_locked(False)
        return value

    return dataclasses.field(default_factory=fresh)


def _is_class_var(annotation: Any) -> bool:
    if isinstance(annotation, str):
        return annotation.startswith(("ClassVar", "typing.ClassVar"))
    return annotation is ClassVar or get_origin(annotation) is ClassVar


_OVERRIDDEN = frozenset(
    {"_alternatives", "_declined", "_interchangeable", "_may_change", "_open", "_problems", "_takes_number"}
    | {"_convert", "_emitted", "_from_number", "_require_unlocked", "_unknown"}
)
"""The private names of `Config` that its subclasses give a meaning of their own."""


def _private_names() -> set[str]:
    return {name for name in Config.__dict__ if _is_private(name) and not name.startswith("__")}


def _check_names(cls: type[Config], annotations: Mapping[str, Any]) -> None:
    """Refuses what would change in silence what a config does: a default without its type, a hidden method."""
    for name in sorted(set(cls.__dict__) & (_private_names() - _OVERRIDDEN)):
        raise UsageError(
            "is a name that Config itself uses", key=f"{cls.__qualname__}.{name}", remedy="give it another one"
        )
    bases = [base for base in cls.__mro__[1:] if issubclass(base, Config)]
    inherited = {field.name for base in bases for field in dataclasses.fields(base)}
    for name in inherited & set(cls.__dict__) - set(annotations):
        raise UsageError("annotate it, or the new default is ignored", key=f"{cls.__qualname__}.{name}")
    taken = {name for base in bases for name in base.__dict__} - inherited
    for name, annotation in annotations.items():
        if (name in taken or name.startswith("_")) and not _is_class_var(annotation):
            raise UsageError("is a reserved name", key=f"{cls.__qualname__}.{name}", remedy="give it another one")


def _check_groups(cls: type[Config], annotations: Mapping[str, Any]) -> None:
    """Refuses `_alternatives` and `_may_change` that name no field, and alternatives with two defaults."""
    fields = set(annotations)
    for base in cls.__mro__[1:]:
        fields |= {field.name for field in dataclasses.fields(base)} if dataclasses.is_dataclass(base) else set()
    named = {name for group in cls.__dict__.get("_alternatives", ()) for name in group}
    for name in sorted((named | set(cls.__dict__.get("_may_change", ()))) - fields):
        raise UsageError(f"there is no field {name!r}", key=cls.__qualname__, remedy=nearest(name, fields))
    for group in cls._alternative_groups():
        defaults = {name: getattr(cls, name, None) for name in group}
        values = {name: value.default if isinstance(value, dataclasses.Field) else value
                  for name, value in defaults.items()}  # fmt: skip
        with_default = [name for name, value in values.items() if value is not None]
        if len(with_default) > 1:
            reason = f"{' and '.join(with_default)} are alternatives; only one can have a default other than None"
            raise UsageError(reason, key=cls.__qualname__)


# -- restrictions --------------------------------------------------------------------------------------------------

_OPERATORS = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}


def _broken_restriction(config: Config, rule: str) -> Problem | None:
    """Returns what is wrong with a rule such as `a.low < a.high` in this config, or None where it holds.

    A rule is a dotted key, one of the operators, and another key, a number or `None`.
    """
    parts = re.split(r"\s*(==|!=|<=|>=|<|>)\s*", rule.strip())
    if len(parts) != 3 or not parts[0] or not parts[2]:
        return Problem("", f"restriction {rule!r} is not of the form 'key < other', with one of {' '.join(_OPERATORS)}")
    try:
        left, right = _operand(config, parts[0]), _operand(config, parts[2])
        holds = _OPERATORS[parts[1]](left, right)
    except (LookupError, TypeError) as error:
        return Problem("", f"restriction {rule!r}: {error.args[0]}")
    return None if holds else Problem("", f"restriction {rule!r} is violated: {left!r} against {right!r}")


def _operand(config: Any, text: str) -> Any:
    if text == "None":
        return None
    try:
        return float(text)
    except ValueError:
        pass
    for name in text.split("."):
        known = config._names() if isinstance(config, Config) else []
        if name not in known:
            raise LookupError(f"no key {text!r}; {nearest(name, known)}")
        config = getattr(config, name)
    return config


@dataclasses.dataclass
class OneOfConfig(Config):
    """A config of which one branch is in use: the field that `type` names.

        @dataclasses.dataclass
        class BackboneConfig(OneOfConfig):
            type: str | None = "resnet"
            resnet: ResNetConfig = ResNetConfig()
            vit: ViTConfig = ViTConfig()

        BackboneConfig({"type": "vit", "vit": {"depth": 12}}).get()  # ViTConfig(depth=12)

    Branches that are not selected keep their values in memory, so that an override of `type` alone finds what
    earlier layers had set; `as_dict`, YAML and `validate` see the selected branch only.
    """

    type: str | None = None
    """Name of the branch in use; None selects nothing."""

    def get(self, key: str | None = None, default: Any = None) -> Any:
        """Returns the selected branch, or None where nothing is selected; with a key, its value, as any config does."""
        if key is not None:
            return super().get(key, default)
        return getattr(self, self.type) if self.type else None

    def _emitted(self) -> list[str]:
        return ["type", self.type] if self.type else ["type"]

    def _convert(self, name: str, value: Any) -> Any:
        converted = super()._convert(name, value)
        branches = [branch for branch in self._names() if branch != "type"]
        if name == "type" and converted is not None and converted not in branches:
            raise UsageError("unknown type", key="type", received=converted, remedy=nearest(converted, branches))
        return converted
