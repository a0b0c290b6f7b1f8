"""A model in lines: `{"dense": "Dense(activation=tanh, units=8)", "dropout": "Dropout(rate=0.1)"}`."""

import re
from collections.abc import Iterator
from typing import Any

import keras

from everstep.task.plain_config import call_text, class_name, configuration, digest, shortened, text

_MOST = 100


def of_model(model: keras.Model) -> str:
    """Returns a model's own line: its class, settings and, if it is functional, outputs."""
    return _Lines(model).line(model)


def layer_lines(model: keras.Model) -> dict[str, str]:
    """Returns a line for every layer and operation in a model, at any depth; of a large model only a digest.

    A layer's key is its class, numbered within the model. Inputs have no line.
    """
    lines = _Lines(model)
    found = {key: lines.line(part) for key, part in lines.parts() if not isinstance(part, keras.layers.InputLayer)}
    if len(found) <= _MOST:
        return {key: shortened(line) for key, line in found.items()}
    whole = "\n".join(f"{key}: {line}" for key, line in found.items())
    return {"all": f"{len(found)} layers, {digest(whole.encode())}"}


class _Lines:
    """The layers of one model by key."""

    def __init__(self, model: keras.Model) -> None:
        self._keys: dict[int, str] = {}
        self._parts: list[Any] = []
        self._calls: dict[int, list[Any]] = {}  # those that are in the model, in their order
        self._numbers: dict[str, int] = {}
        self._add(model)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yields keys and layers, outer ones before what is in them."""
        return ((self._keys[id(part)], part) for part in self._parts)

    def _add(self, owner: Any) -> None:
        nodes = _nodes(owner)
        for part in _children(owner):
            if id(part) not in self._keys:
                self._keys[id(part)] = self._numbered(_snake_case(type(part).__name__))
                self._parts.append(part)
                self._calls[id(part)] = [node for node in part._inbound_nodes if id(node) in nodes]
                self._add(part)

    def _numbered(self, base: str) -> str:
        number = self._numbers[base] = self._numbers.get(base, -1) + 1
        return f"{base}_{number}" if number else base

    def line(self, part: Any) -> str:
        """Returns class and settings, inputs and outputs."""
        line = call_text(class_name(part), self._settings(part))
        inputs = [self._arguments(node) for node in self._calls.get(id(part), [])]
        line += f" <- {'; '.join(inputs)}" if any(inputs) else ""
        return f"{line} -> {text(part._outputs_struct, self._reference)}" if _is_graph(part) else line

    def _settings(self, part: Any) -> dict[str, Any]:
        """Returns what a layer says of itself, less the layers in it, which have lines of their own."""
        if _is_graph(part) or isinstance(part, keras.Sequential):
            return {}
        inside = {type(child).__name__ for child in _descendants(part)}
        return {key: value for key, value in configuration(part).items() if _class_in(value) not in inside}

    def _arguments(self, node: Any) -> str:
        given = [text(value, self._reference) for value in node.arguments.args]
        named = {key: text(value, self._reference) for key, value in sorted(node.arguments.kwargs.items())}
        return ", ".join([*map(str, given), *(f"{key}={value}" for key, value in named.items() if value is not None)])

    def _reference(self, tensor: Any) -> str:
        operation, node, index = tensor._keras_history
        calls = enumerate(self._calls.get(id(operation), []))
        place = next((i for i, call in calls if call is operation._inbound_nodes[node]), 0)
        key = self._keys.get(id(operation), class_name(operation))
        return f"{key}:{place}:{index}" if place or index else key


def _children(owner: Any) -> list[Any]:
    """Returns the layers directly in an owner; of a functional model also the operations between them."""
    operations = owner.operations if _is_graph(owner) else []
    layers = owner._flatten_layers(include_self=False, recursive=False) if isinstance(owner, keras.Layer) else []
    return [*operations, *layers]


def _descendants(owner: Any) -> list[Any]:
    return owner._flatten_layers(include_self=False) if isinstance(owner, keras.Layer) else []


def _is_graph(owner: Any) -> bool:
    return isinstance(owner, keras.Model) and hasattr(owner, "_nodes_by_depth")


def _nodes(owner: Any) -> set[int]:
    """Returns the calls that a functional model is made of, by id; none of any other model."""
    by_depth = owner._nodes_by_depth if _is_graph(owner) else {}
    return {id(node) for nodes in by_depth.values() for node in nodes}


def _class_in(value: Any) -> str:
    return str(value.get("class_name", "")) if isinstance(value, dict) else ""


def _snake_case(name: str) -> str:
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
