"""A JSON Schema of an experiment's configuration, with which an editor completes keys and marks mistakes.

It describes a config object, not a class: the object knows which subclasses it holds. It helps while a file is
written; rules between values, which JSON Schema cannot say, are checked when the file is read.
"""

import dataclasses
import enum
import json
import os
import re
import typing
from collections.abc import Mapping
from typing import Any

from everstep import redaction
from everstep.config.base import Config
from everstep.config.defaults import class_defaults
from everstep.config.docstrings import field_docs
from everstep.config.node import Node, nodes_in
from everstep.config.one_of import OneOfConfig
from everstep.config.schema_types import INTERPOLATION, Schema, any_of, value_schema

DRAFT = "https://json-schema.org/draft/2020-12/schema"
"""The version of JSON Schema."""


def json_schema(config: Config, experiment: str) -> Schema:
    """Returns the schema of the files that `--config-file` takes for an experiment.

    Every key has its docstring as `description` and the value in this config as `default`. Every value may also be
    an interpolation, text with `${…}` in it. No key is required: a file says what it wants to change.

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
        self._inside: list[type[Node]] = []

    def held(self, config: Node) -> Schema:
        """Describes a config as it is."""
        return self._object(type(config), {name: getattr(config, name) for name in config._names()})

    def _class(self, cls: type[Node]) -> Schema:
        """Describes a config that could be given; a class inside itself is described once."""
        return {"type": "object"} if cls in self._inside else self._object(cls, class_defaults(cls))

    def _object(self, cls: type[Node], values: Mapping[str, Any]) -> Schema:
        self._inside.append(cls)
        fields = {name: self._field(annotation, values.get(name)) for name, annotation in _fields(cls, values).items()}
        self._inside.pop()
        if issubclass(cls, OneOfConfig):
            fields["type"] = _choice(cls, fields)
        docs = field_docs(cls)
        properties = {name: {**_description(docs, name), **fields[name], **_default(values, name)} for name in fields}
        return {
            "type": "object",
            "properties": properties,
            **_elements(fields),
            "additionalProperties": "_open" in cls.__dict__,
        }

    def _field(self, annotation: Any, value: Any) -> Schema:
        return value_schema(annotation, lambda cls: self._config(cls, value))

    def _config(self, cls: type[Node], value: Any) -> Schema:
        """Describes what `cls` in an annotation stands for: the config held, or those that could be."""
        if isinstance(value, cls):
            held = self.held(value)
            return {**held, "type": [held["type"], "number"]} if cls._takes_number else held
        found = [self.held(node) for _, node in nodes_in(value, "") if isinstance(node, cls)]
        schemas = [*found, self._class(cls)]
        return any_of([schema for number, schema in enumerate(schemas) if schema not in schemas[:number]])


def _fields(cls: type[Node], values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns each field's annotation; what an open config was given may be anything, its parts open as well."""
    given = {name: type(value) if isinstance(value, Node) else Any for name, value in values.items()}
    hints = typing.get_type_hints(cls, include_extras=True)
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        given[field.name] = hints[field.name] if field.default is not None else hints[field.name] | None
    return given


def _choice(cls: type[Node], fields: Mapping[str, Schema]) -> Schema:
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


def _description(docs: Mapping[str, str], name: str) -> Schema:
    return {"description": docs[name]} if name in docs else {}


def _default(values: Mapping[str, Any], name: str) -> Schema:
    """Returns the value held as JSON; sections have their defaults further down, and some values have no JSON."""
    value = values.get(name, dataclasses.MISSING)
    if isinstance(value, Node) or value is dataclasses.MISSING:
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
