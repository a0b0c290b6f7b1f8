"""A JSON Schema of an experiment's configuration, with which an editor completes keys and marks mistakes.

It describes a config object, not a class: the object knows which subclasses it holds. It helps while a file is
written; rules between values, which JSON Schema cannot express, are checked when the file is read.
"""

import ast
import collections.abc
import dataclasses
import enum
import functools
import inspect
import itertools
import json
import math
import os
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from pydantic.errors import PydanticInvalidForJsonSchema

from everstep import redaction
from everstep.config.base import Config, OneOfConfig, class_defaults, configs_in

DRAFT = "https://json-schema.org/draft/2020-12/schema"
"""The version of JSON Schema."""

Schema = dict[str, Any]
Describe = Callable[[type[Config]], Schema]
"""Returns the schema of a config class in the place at hand."""

INTERPOLATION: Schema = {"type": "string", "pattern": r"\$\{"}
"""Text that stands for a value of any type."""

_NULL: Schema = {"type": "null"}
_LISTS = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)
_CONTAINERS = ("object", "array")


def json_schema(config: Config, experiment: str) -> Schema:
    """Returns the schema of the files that `--config-file` takes for an experiment.

    Every key has its docstring as `description` and the value in this config as `default`. Every value may also be
    an interpolation, text with `${…}` in it. No key is required: a file only has the values that it changes.

    Args:
      config: The experiment's configuration.
      experiment: Its name: the title, and the only one that `experiment:` may give in a file.
    """
    schema = _Describer().held(config)
    schema["properties"] = {**_header(experiment), **schema["properties"]}
    return {"$schema": DRAFT, "title": experiment, **schema}


def _header(experiment: str) -> dict[str, Schema]:
    texts = {"type": "array", "items": {"type": "string"}}
    return {
        "experiment": {"description": "The experiment these values are for.", "type": "string", "const": experiment},
        "imports": {"description": "Modules to import first; they register experiments.", **texts},
        "gin": {"description": "gin bindings, one a line.", "type": "string"},
        "added": {"description": "Keys that the experiment itself does not have.", **texts},
        "dropped": {"description": "Keys that the experiment has and these values do not.", **texts},
        "defaults": {"description": "Files in config groups to start from, as Hydra reads them.", "type": "array"},
    }


class _Describer:
    """Describes configs, and classes where none is held."""

    def __init__(self) -> None:
        self._inside: list[type[Config]] = []

    def held(self, config: Config) -> Schema:
        """Describes a config as it is."""
        return self._object(type(config), {name: getattr(config, name) for name in config._names()})

    def _class(self, cls: type[Config]) -> Schema:
        """Describes a config that could be given; a class inside itself is described once."""
        return {"type": "object"} if cls in self._inside else self._object(cls, class_defaults(cls))

    def _object(self, cls: type[Config], values: Mapping[str, Any]) -> Schema:
        self._inside.append(cls)
        fields: dict[str, Schema] = {}
        for name, annotation in _fields(cls, values).items():
            fields[name] = value_schema(annotation, functools.partial(self._config, value=values.get(name)))
        self._inside.pop()
        if issubclass(cls, OneOfConfig):
            fields["type"] = _choice(cls, fields)
        docs = field_docs(cls)
        described = {name: {"description": docs[name]} if name in docs else {} for name in fields}
        properties = {name: {**described[name], **fields[name], **_default(values, name)} for name in fields}
        return {
            "type": "object",
            "properties": properties,
            **_elements(fields),
            "additionalProperties": "_open" in cls.__dict__,
        }

    def _config(self, cls: type[Config], value: Any) -> Schema:
        """Describes what `cls` in an annotation stands for: the config held, or those that could be."""
        if isinstance(value, cls):
            held = self.held(value)
            return {**held, "type": [held["type"], "number"]} if cls._takes_number else held
        found = [self.held(node) for _, node in configs_in(value, "") if isinstance(node, cls)]
        schemas = [*found, self._class(cls)]
        return any_of([schema for number, schema in enumerate(schemas) if schema not in schemas[:number]])


def _fields(cls: type[Config], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each field's annotation; what an open config was given may be anything, its parts open as well."""
    given = {name: type(value) if isinstance(value, Config) else Any for name, value in values.items()}
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):
        given[field.name] = hints[field.name] if field.default is not None else hints[field.name] | None
    return given


def _choice(cls: type[Config], fields: Mapping[str, Schema]) -> Schema:
    """Returns the schema of `type`: a branch's name, or nothing where the class allows that."""
    branches: list[str | None] = [name for name in fields if name != "type"]
    annotation = typing.get_type_hints(cls)["type"]
    nothing = [None] if type(None) in typing.get_args(annotation) else []
    return {"anyOf": [{"enum": branches + nothing}, INTERPOLATION]}


def _elements(fields: Mapping[str, Schema]) -> Schema:
    """Describes keys such as `layers[0]`, which name one element of a list."""
    items = {name: schema["items"] for name, schema in fields.items() if schema.get("items")}
    patterns = {rf"^{re.escape(name)}\[\d+\]$": schema for name, schema in items.items()}
    return {"patternProperties": patterns} if patterns else {}


def _default(values: Mapping[str, Any], name: str) -> Schema:
    """Returns the value held as JSON; sections have their defaults further down, and some values have no JSON."""
    value = values.get(name, dataclasses.MISSING)
    if isinstance(value, Config) or value is dataclasses.MISSING:
        return {}
    try:
        plain = json.loads(json.dumps(value, default=_plain, allow_nan=False))
    except (TypeError, ValueError):
        return {}
    return {"default": redaction.tree({name: plain})[name]}


def _plain(value: Any) -> Any:
    if isinstance(value, Config):
        return value.as_dict()
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=repr)
    if isinstance(value, enum.Enum):
        return value.value
    return os.fspath(value)  # a TypeError for what is no path


# -- types ---------------------------------------------------------------------------------------------------------


def value_schema(annotation: Any, describe: Describe) -> Schema:
    """Returns the schema of what may be written for an annotation: a value of that type, or an interpolation.

    Args:
      annotation: As on a field.
      describe: Called for each config class in it.
    """
    return _or_interpolation(_typed(annotation, describe))


def _typed(annotation: Any, describe: Describe) -> Schema:
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Config):
        return describe(annotation)
    if origin in (Union, types.UnionType):
        return any_of([_typed(arg, describe) for arg in args])
    if origin is Literal:
        return {"enum": [arg.value if isinstance(arg, enum.Enum) else arg for arg in args]}
    if origin is Annotated:
        return _constrained(_typed(args[0], describe), annotation)
    if origin in _LISTS or (origin is tuple and Ellipsis in args):
        return {"type": "array", "items": value_schema(args[0], describe)}
    if origin is tuple and args:
        items = [value_schema(arg, describe) for arg in args]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if origin in _MAPPINGS:
        return {"type": "object", "additionalProperties": value_schema(args[1], describe)}
    return _pydantic(annotation)


def any_of(options: Sequence[Schema]) -> Schema:
    """Returns a schema that takes what one of the options takes.

    A container that may be null stays one schema: an editor can then say which key in it is wrong.
    """
    if {} in options:
        return {}
    others = [option for option in options if option != _NULL]
    if len(others) == 1 and len(options) == 2 and others[0].get("type") in _CONTAINERS:
        return {**others[0], "type": [others[0]["type"], "null"]}
    return {"anyOf": list(options)} if len(options) > 1 else options[0]


def _or_interpolation(schema: Schema) -> Schema:
    options = schema.get("anyOf", [schema])
    if schema == {} or {"type": "string"} in options:
        return schema
    kinds = schema.get("type")
    kinds = kinds if isinstance(kinds, list) else [kinds]
    if kinds[0] in _CONTAINERS:  # `pattern` binds texts only
        return {**schema, "type": [*kinds, "string"], "pattern": INTERPOLATION["pattern"]}
    return {"anyOf": [*options, INTERPOLATION]}


def _constrained(schema: Schema, annotation: Any) -> Schema:
    """Returns a schema with the constraints of `Annotated`, as far as JSON Schema can express them."""
    whole = {key: value for key, value in _pydantic(annotation).items() if value not in (math.inf, -math.inf)}
    if schema.get("type") in _CONTAINERS:
        return {**schema, **{key: value for key, value in whole.items() if key.startswith(("min", "max"))}}
    return whole or schema


def _pydantic(annotation: Any) -> Schema:
    """Returns pydantic's schema; {}, which takes anything, where it has none without references."""
    try:
        schema = pydantic.TypeAdapter(annotation).json_schema()
    except (pydantic.errors.PydanticUserError, PydanticInvalidForJsonSchema):
        return {}
    return {} if "$defs" in schema or "$ref" in schema else schema


# -- docstrings ----------------------------------------------------------------------------------------------------


def field_docs(cls: type) -> dict[str, str]:
    """Returns the text under each field, by name.

        @dataclasses.dataclass
        class ModelConfig(Config):
            units: int = 32
            '''Width of the hidden layer.'''

        field_docs(ModelConfig)  # {"units": "Width of the hidden layer."}

    Python does not keep these texts, so they are read from the source. An inherited field has the text of the
    class that declares it. Fields without a text are left out, and all of those whose class has no source, as one
    that was typed into a console.
    """
    docs: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        docs |= _own_docs(base)
    return docs


@functools.cache
def _own_docs(cls: type) -> dict[str, str]:
    if not dataclasses.is_dataclass(cls):
        return {}
    return dict(_texts(_body(cls)))


def _body(cls: type) -> list[ast.stmt]:
    """Returns the statements in a class, none where its source is not there or has become another one."""
    try:
        source = inspect.getsource(cls)
        # Dedenting would break on a long text that reaches the left margin.
        tree = ast.parse(f"if True:\n{source}" if source[:1].isspace() else source)
    except (OSError, TypeError, SyntaxError):
        return []
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == cls.__name__)
    found = next(classes, None)
    return found.body if found else []


def _texts(body: list[ast.stmt]) -> list[tuple[str, str]]:
    return [
        (field.target.id, inspect.cleandoc(below.value.value))
        for field, below in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str)
    ]
