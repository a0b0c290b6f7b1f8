"""From the annotation of a config field to a JSON Schema; pydantic describes whatever has no parts of its own."""

import collections.abc
import enum
import types
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pydantic
from pydantic.errors import PydanticInvalidForJsonSchema

from everstep.config.node import Node

Schema = dict[str, Any]
Describe = Callable[[type[Node]], Schema]
"""Returns the schema of a config class in the place at hand."""

INTERPOLATION: Schema = {"type": "string", "pattern": r"\$\{"}
"""Text that stands for a value of any type."""

_NULL: Schema = {"type": "null"}
_LISTS = (list, set, frozenset, collections.abc.Sequence, collections.abc.Iterable)
_MAPPINGS = (dict, collections.abc.Mapping)
_CONTAINERS = ("object", "array")


def value_schema(annotation: Any, describe: Describe) -> Schema:
    """Returns the schema of what may be written for an annotation: a value of that type, or an interpolation.

    Args:
      annotation: As on a field.
      describe: Called for each config class in it.
    """
    return _or_interpolation(_typed(annotation, describe))


def _typed(annotation: Any, describe: Describe) -> Schema:
    origin, args = get_origin(annotation), get_args(annotation)
    if isinstance(annotation, type) and issubclass(annotation, Node):
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
        return _fixed([value_schema(arg, describe) for arg in args])
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


def _fixed(items: list[Schema]) -> Schema:
    return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}


def _constrained(schema: Schema, annotation: Any) -> Schema:
    """Returns a schema with what `Annotated` adds to it, as far as JSON Schema can say it."""
    whole = _pydantic(annotation)
    if schema.get("type") in _CONTAINERS:
        return {**schema, **{key: value for key, value in whole.items() if key.startswith(("min", "max"))}}
    return whole or schema


def _pydantic(annotation: Any) -> Schema:
    """Returns pydantic's schema; {}, which takes anything, where it has none that can stand by itself."""
    try:
        schema = pydantic.TypeAdapter(annotation).json_schema()
    except (pydantic.errors.PydanticUserError, PydanticInvalidForJsonSchema):
        return {}
    return {} if "$defs" in schema or "$ref" in schema else schema
