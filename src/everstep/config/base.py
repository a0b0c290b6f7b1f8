"""`Config`, the base of every configuration dataclass."""

import copy
import dataclasses
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any, Self

from everstep.config import dialect, interpolation, restriction
from everstep.config.checking import field_types, own_annotations
from everstep.config.layer import Layer
from everstep.config.merge import Plan
from everstep.config.node import Node
from everstep.config.problem import ConfigError, Problem, problems_under
from everstep.errors import UsageError


@dataclasses.dataclass(repr=False)
class Config(Node):
    """Typed settings with a name, a default and a docstring each.

        @dataclasses.dataclass
        class ModelConfig(Config):
            units: int = 32
            '''Width of the hidden layer.'''

        @dataclasses.dataclass
        class TaskConfig(Config):
            model: ModelConfig = ModelConfig()

        config = TaskConfig({"model": {"units": 64}})
        config.override({"model": {"unist": 8}})  # UsageError: model.unist: unknown key …

    Types hold whenever a value is stored: at construction, assignment and override. A dict given for a field
    annotated with a config class becomes that class, also inside Optional, list, tuple and dict. A default
    such as `ModelConfig()` or `[1, 2]` is copied for every instance.

    `Config` itself declares nothing and is open: `Config({"a": {"b": 1}}).a.b` reads a plain dict with dots.
    Names of methods and names that start with an underscore are reserved.

    Attributes:
      default_params: Values to start from, merged over the defaults and the keyword arguments.
      restrictions: Rules that `validate` checks, such as `["model.units > 0"]`.
    """

    _open = True

    default_params: dataclasses.InitVar[Mapping[str, Any] | None] = None
    restrictions: dataclasses.InitVar[Sequence[str] | None] = None

    def __post_init__(self, default_params: Mapping[str, Any] | None, restrictions: Sequence[str] | None) -> None:
        field_types(type(self))  # finds a forgotten decorator, even where no field is ever set
        object.__setattr__(self, "_restrictions", tuple(restrictions or ()))
        if default_params is not None:
            self.override(default_params, is_strict=False)

    @classmethod
    def from_yaml(cls, path: str | os.PathLike[str]) -> Self:
        """Returns the defaults with the values of a file merged over them.

        The file is YAML, or JSON or TOML where its suffix says so. Interpolations in it refer to its own values; in
        `ExperimentConfig.from_yaml`, to the whole experiment.

        Raises:
          UsageError: The file cannot be read, or everything wrong in it, each with its line.
        """
        return cls._from_layer(interpolation.alone(Layer.from_file(path)))

    @classmethod
    def from_json(cls, path: str | os.PathLike[str]) -> Self:
        """Is `from_yaml`, which reads JSON too."""
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
            raise UsageError(f"{cls.__name__}.from_args: received {len(args)} values, but the class {known}")
        given = dict(zip(names, args, strict=False))
        twice = [Problem(name, "is given by position and by name") for name in given if name in kwargs]
        if twice:
            raise ConfigError(twice, owner=cls.__name__)
        return cls._from_layer(Layer(f"{cls.__name__}.from_args", given | kwargs))

    @classmethod
    def _from_layer(cls, layer: Layer) -> Self:
        try:
            made: Any = cls._from_mapping(layer.tree)
            return made
        except ConfigError as error:
            problems = [dataclasses.replace(p, origin=layer.origin_of(p.path)) for p in error.problems]
            raise ConfigError(problems) from None

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
          UsageError: A line per problem, each with its full key path: unknown keys with the nearest names,
            values of a wrong type, reserved names, locked configs.
        """
        if isinstance(override_params, Config):
            override_params = override_params.as_dict()
        if not isinstance(override_params, Mapping):
            raise ConfigError([Problem("", f"expected a dict of values, received {override_params!r}")])
        plan = Plan(is_strict)
        plan.visit(self, override_params)
        plan.carry_out()

    def as_dict(self) -> dict[str, Any]:
        """Returns the values as plain nested dicts and lists that share nothing with this config."""
        return {name: _plain(getattr(self, name)) for name in self._emitted()}

    def get(self, key: str, default: Any = None) -> Any:
        """Returns the value of `key`, or `default` where the config has no such key, as a dict does."""
        return getattr(self, key) if key in self else default

    def __contains__(self, key: object) -> bool:
        """Tells whether the config has a value under this key, be it None."""
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
        """Checks what types cannot say: the restrictions, and `validate` of every config held.

        Override it for rules of your own, call `super().validate()`, and raise UsageError.

        Raises:
          UsageError: A line per problem.
        """
        broken = [restriction.broken(self, rule) for rule in self._restrictions]
        problems = [problem for problem in broken if problem]
        for path, child in self._children(self._emitted()):
            try:
                child.validate()
            except ValueError as error:
                problems += problems_under(path, error)
        if problems:
            raise ConfigError(problems)

    def to_yaml(self) -> str:
        """Returns the config as YAML; overriding the same defaults with it gives the same config."""
        return dialect.dump(dialect.escaped(self.as_dict()))

    def save_yaml(self, path: str | os.PathLike[str]) -> None:
        """Writes `to_yaml()` to a local file."""
        pathlib.Path(path).write_text(self.to_yaml(), encoding="utf-8")

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._names())
        return f"{type(self).__name__}({values})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]


def _values(config: Node) -> dict[str, Any]:
    return {name: getattr(config, name) for name in config._names()}


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.as_dict()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_plain(item) for item in value)
    return copy.copy(value)
