"""Describes a compiled model in plain values, so that a resumed run can detect that it was changed.

Two processes that run the same program get the same description. Names are left out, since Keras numbers them per
process; so are seeds and initializers, since a checkpoint replaces their results. A function is described by its
qualified name, an object without a configuration by its class and its plain attributes.
"""

import contextlib
import dataclasses
import hashlib
import inspect
import re
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np

from everstep.config import Config
from everstep.keras_internals import module_utils, to_snake_case
from everstep.task.optim.optimizers import parts_of

_RATE = "learning_rate"
_MOST_LINES = 100
_DROPPED = ("name", "seed", "build_config", "build_input_shape")
_DEFAULTS = {"trainable": True, "dtype": "float32"}
_LONGEST = 400

Rate = float | list[Any] | None
"""A constant learning rate, or those of several optimizers; None for a schedule."""

Reference = Callable[[Any], str]
"""Returns the name of the operation that a symbolic tensor comes from."""


@dataclasses.dataclass
class ModelDescription(Config):
    """A model, layer by layer."""

    type: str = ""
    """The class and, for a functional model, the outputs."""
    layers: dict[str, str] = dataclasses.field(default_factory=dict)
    """Each layer with its settings and, in a functional model, its inputs; for a large model only a digest."""
    optimizers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of the optimizers in further attributes, by attribute; without the one it was compiled with."""


@dataclasses.dataclass
class Description:
    """A compiled model before training.

    Attributes:
      model: The layers of the model.
      optimizer: The settings of the optimizer.
      loss: The loss, or the loss of each output.
      loss_weights: The weight of the loss of each output.
      learning_rate: The learning rate; None if it follows a schedule. Of several optimizers, that of each.
    """

    model: ModelDescription
    optimizer: dict[str, Any]
    loss: str
    loss_weights: str
    learning_rate: Rate


class Settings(NamedTuple):
    """A model and its optimizer as they are now."""

    model: ModelDescription
    optimizer: dict[str, Any]
    learning_rate: Rate

    def without_rate(self) -> tuple[ModelDescription, dict[str, Any]]:
        """Returns everything but the learning rate, which may change from step to step."""
        return self.model, {name: value for name, value in self.optimizer.items() if name != _RATE}


def settings(model: keras.Model) -> Settings:
    """Returns the current settings of a model and its optimizer."""
    with _without_importing_tensorflow():
        return Settings(_model(model), *_optimizer(model.optimizer))


def describe(model: keras.Model, now: Settings | None = None) -> Description:
    """Describes a model as it was compiled; changes by training do not count (see `remember_description`).

    Args:
      model: The model.
      now: Its current settings, where they are known already.
    """
    now = settings(model) if now is None else now
    optimizer, rate = _as_compiled(model.optimizer, (now.optimizer, now.learning_rate))
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    with _without_importing_tensorflow():
        return Description(
            model=_as_compiled(model, now.model),
            optimizer=optimizer,
            loss=shortened(text(getattr(model, "loss", None)) or ""),
            loss_weights=shortened(text(weights) or ""),
            learning_rate=rate,
        )


def remember_description(model: keras.Model, description: Description, now: Settings) -> None:
    """Makes `describe` return this description for a trained model, until the user changes the model.

    Training may have changed the learning rate, or built the model.

    Args:
      model: The model after training.
      description: The result of `describe` before training.
      now: The settings after training.
    """
    compiled = description.optimizer, description.learning_rate
    _trained[model.optimizer] = compiled, (now.optimizer, now.learning_rate)
    _trained[model] = description.model, now.model


@contextlib.contextmanager
def _without_importing_tensorflow() -> Iterator[None]:
    """Keeps Keras from importing TensorFlow to look for its types in a configuration, where there can be none."""
    module, known = module_utils.tensorflow, module_utils.tensorflow._available
    if known is None and module.name not in sys.modules:
        module._available = False
    try:
        yield
    finally:
        module._available = known


def constant_rate(optimizer: Any) -> Rate:
    """Returns the learning rate of an optimizer, or None if it follows a schedule; of several optimizers, each rate."""
    if parts := parts_of(optimizer):
        return [constant_rate(part) for part in parts]
    rate = getattr(optimizer, "learning_rate", None)
    return float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else None


_trained: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
"""For each model and optimizer that was trained: its description before and after training."""


def _as_compiled(owner: Any, now: Any) -> Any:
    before, after = _trained.get(owner, (now, None))
    return before if now == after else now


def _model(model: keras.Model) -> ModelDescription:
    held = {
        name: _optimizer(value)[0]
        for name, value in sorted(vars(model).items())
        if isinstance(value, keras.optimizers.Optimizer) and name != "optimizer"
    }
    lines = _Lines(model)
    return ModelDescription(type=lines.line(model), layers=_layer_lines(lines), optimizers=held)


def _optimizer(optimizer: Any) -> tuple[dict[str, Any], Rate]:
    settings = {"class": class_name(optimizer), **tree(configuration(optimizer))}
    schedule = getattr(optimizer, "_learning_rate", None)
    if _RATE not in settings and callable(schedule):  # a schedule without get_config
        settings[_RATE] = {"class": class_name(schedule), **tree(configuration(schedule))}
    return settings, constant_rate(optimizer)


# -- a model in lines: {"dense": "Dense(activation=tanh, units=8)", "dropout": "Dropout(rate=0.1)"} -------------------


def _layer_lines(lines: "_Lines") -> dict[str, str]:
    """Returns a line for every layer and operation in a model, at any depth; for a large model only a digest.

    The key of a layer is its class, numbered within the model. Inputs have no line.
    """
    found = {key: lines.line(part) for key, part in lines.parts() if not isinstance(part, keras.layers.InputLayer)}
    if len(found) <= _MOST_LINES:
        return {key: shortened(line) for key, line in found.items()}
    whole = "\n".join(f"{key}: {line}" for key, line in found.items())
    return {"all": f"{len(found)} layers, {digest(whole.encode())}"}


class _Lines:
    """The layers of one model by key, and the line of each: its class, settings and, in a functional model, inputs."""

    def __init__(self, model: keras.Model) -> None:
        self._keys: dict[int, str] = {}
        self._parts: list[Any] = []
        self._calls: dict[int, list[Any]] = {}  # the calls of each layer in this model, in order
        self._numbers: dict[str, int] = {}
        self._add(model)

    def parts(self) -> Iterator[tuple[str, Any]]:
        """Yields keys and layers, each layer before the layers inside it."""
        return ((self._keys[id(part)], part) for part in self._parts)

    def _add(self, owner: Any) -> None:
        nodes = _nodes(owner)
        for part in _children(owner):
            if id(part) not in self._keys:
                self._keys[id(part)] = self._numbered(to_snake_case(type(part).__name__))
                self._parts.append(part)
                self._calls[id(part)] = [node for node in part._inbound_nodes if id(node) in nodes]
                self._add(part)

    def _numbered(self, base: str) -> str:
        number = self._numbers[base] = self._numbers.get(base, -1) + 1
        return f"{base}_{number}" if number else base

    def line(self, part: Any) -> str:
        """Returns the class of a layer with its settings, inputs and outputs."""
        line = call_text(class_name(part), self._settings(part))
        inputs = [self._arguments(node) for node in self._calls.get(id(part), [])]
        line += f" <- {'; '.join(inputs)}" if any(inputs) else ""
        return f"{line} -> {text(part._outputs_struct, self._reference)}" if _is_graph(part) else line

    def _settings(self, part: Any) -> dict[str, Any]:
        """Returns the configuration of a layer without the layers inside it, which have their own lines."""
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
    """Returns the layers directly inside an owner; for a functional model also the operations between them."""
    operations = owner.operations if _is_graph(owner) else []
    layers = owner._flatten_layers(include_self=False, recursive=False) if isinstance(owner, keras.Layer) else []
    return [*operations, *layers]


def _descendants(owner: Any) -> list[Any]:
    return owner._flatten_layers(include_self=False) if isinstance(owner, keras.Layer) else []


def _is_graph(owner: Any) -> bool:
    return isinstance(owner, keras.Model) and hasattr(owner, "_nodes_by_depth")


def _nodes(owner: Any) -> set[int]:
    """Returns the ids of the calls that a functional model consists of; empty for other models."""
    by_depth = owner._nodes_by_depth if _is_graph(owner) else {}
    return {id(node) for nodes in by_depth.values() for node in nodes}


def _class_in(value: Any) -> str:
    return str(value.get("class_name", "")) if isinstance(value, dict) else ""


# -- Keras objects as plain values and short text, the same in every process ------------------------------------------


def class_name(value: Any) -> str:
    """Returns the qualified name of an object's class, or of a function."""
    named = value if isinstance(value, type | types.FunctionType) else type(value)
    return named.__qualname__


def configuration(owner: Any) -> dict[str, Any]:
    """Returns the configuration of a Keras object or, if it has none, the arguments that it keeps as attributes.

    Functions are returned unchanged: Keras would turn a lambda into bytes that contain the path of its file.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns about lambdas, which cannot be loaded
            config = dict(owner.get_config())
    except Exception:  # the method of a user may fail in any way, or be missing
        config = _kept_arguments(owner)
    config = {**getattr(owner, "_fn_kwargs", {}), **config}  # Huber's configuration lacks its delta
    functions = {key: getattr(owner, key, None) for key in config}
    config |= {key: value for key, value in functions.items() if isinstance(value, types.FunctionType)}
    return {key: value for key, value in config.items() if not _is_left_out(key, value)}


def _kept_arguments(owner: Any) -> dict[str, Any]:
    """Returns the attributes with plain values that are named like an argument of `__init__`."""
    kept = {name: getattr(owner, name, None) for name in inspect.signature(type(owner).__init__).parameters}
    return {name: value for name, value in kept.items() if isinstance(value, bool | int | float | str)}


def tree(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration with numbers unchanged, objects as nested dicts, and other values as text."""
    return {_key(name): _branch(value) for name, value in sorted(config.items()) if not _is_left_out(name, value)}


def text(value: Any, reference: Reference = class_name) -> str | None:
    """Returns a value as readable text on one line; None for None.

    Args:
      value: A value of a configuration, or a Keras object.
      reference: Returns the names of the symbolic tensors in it.
    """
    if isinstance(value, keras.KerasTensor):
        return reference(value)
    if isinstance(value, Mapping):
        return _object_text(value, reference) or "{" + ", ".join(_items(value, ": ", reference)) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        parts = [str(text(item, reference)) for item in value]
        return f"[{', '.join(parts if isinstance(value, list | tuple) else sorted(parts))}]"
    if isinstance(value, np.ndarray):
        return f"array{value.shape} {digest(value.tobytes())}"
    if hasattr(value, "get_config") and not isinstance(value, type):
        return call_text(class_name(value), configuration(value), reference)
    return None if value is None else str(_scalar(value))


def call_text(name: str, config: Mapping[str, Any], reference: Reference = class_name) -> str:
    """Returns `Dense(units=3, use_bias=True)`."""
    arguments = ", ".join(_items(config, "=", reference))
    return f"{name}({arguments})" if arguments else name


def shortened(line: str) -> str:
    """Returns a line; a long one is cut and gets a digest."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 60]}… {digest(line.encode())}"


def digest(content: bytes) -> str:
    """Returns a short fingerprint."""
    return f"sha256:{hashlib.sha256(content).hexdigest()[:16]}"


def _items(config: Mapping[str, Any], sign: str, reference: Reference) -> list[str]:
    """Returns the items of a configuration that are neither empty nor defaults, as text."""
    kept = {str(k): text(v, reference) for k, v in config.items() if not _is_left_out(str(k), v)}
    return [f"{k}{sign}{v}" for k, v in sorted(kept.items()) if v is not None and v != str(_DEFAULTS.get(k))]


def _object_text(value: Mapping[str, Any], reference: Reference) -> str:
    """Returns a serialized object, function or lambda as text; nothing for a plain dict."""
    if set(value) == {"value"} and isinstance(value["value"], list | tuple) and len(value["value"]) == 3:
        return "<lambda>"  # for which Keras stores code, defaults and closure
    kind, config = value.get("class_name"), value.get("config")
    if kind is None or "config" not in value:
        return ""
    if kind in ("__lambda__", "function", "builtin"):
        return "<lambda>" if kind == "__lambda__" else str(config)
    if not isinstance(config, Mapping):
        return f"{kind}({text(config, reference)})"
    return str(config.get("name")) if "DTypePolicy" in kind else call_text(kind, config, reference)


def _branch(value: Any) -> Any:
    if isinstance(value, Mapping) and "class_name" in value and isinstance(value.get("config"), Mapping):
        found = _object_text(value, class_name)
        return found if found == "<lambda>" else {"class": value["class_name"], **tree(value["config"])}
    return _scalar(value) if isinstance(value, bool | int | float | str | np.generic) else shortened(str(text(value)))


def _scalar(value: Any) -> Any:
    """Returns a number or text, a float32 with its short decimal form; for other values the name of the class."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and np.isfinite(value) and abs(value) < 1e30 and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value if isinstance(value, bool | int | float | str | slice | type(...)) else class_name(value)


def _is_left_out(key: str, value: Any) -> bool:
    is_initializer = isinstance(value, Mapping) and value.get("module") == "keras.initializers"
    return value is None or key in _DROPPED or key.endswith("_initializer") or is_initializer


def _key(name: str) -> str:
    return re.sub(r"[.\[\]]", "_", str(name)) or "_"
