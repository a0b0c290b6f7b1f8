"""Configurations of Keras objects as plain values and short text, the same in every process."""

import hashlib
import inspect
import re
import types
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

_DROPPED = ("name", "seed", "build_config", "build_input_shape")
_USUAL = {"trainable": True, "dtype": "float32"}
_LONGEST = 400

Reference = Callable[[Any], str]
"""Names the operation that a symbolic tensor comes from."""


def class_name(value: Any) -> str:
    """Returns the qualified name of an object's class, or of a function."""
    named = value if isinstance(value, type | types.FunctionType) else type(value)
    return named.__qualname__


def configuration(owner: Any) -> dict[str, Any]:
    """Returns what a Keras object says of itself, or, where it says nothing, what it was made with and has kept.

    Functions are returned as they are; Keras would turn a lambda into bytes that name the file it is from.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras warns of lambdas, which could not be loaded
            config = dict(owner.get_config())
    except Exception:  # a user's method may fail in any way, or there is none
        config = _kept_arguments(owner)
    config = {**getattr(owner, "_fn_kwargs", {}), **config}  # Huber does not tell its delta
    functions = {key: getattr(owner, key, None) for key in config}
    config |= {key: value for key, value in functions.items() if isinstance(value, types.FunctionType)}
    return {key: value for key, value in config.items() if not _is_left_out(key, value)}


def _kept_arguments(owner: Any) -> dict[str, Any]:
    """Returns the plain attributes that have the name of an argument of `__init__`."""
    kept = {name: getattr(owner, name, None) for name in inspect.signature(type(owner).__init__).parameters}
    return {name: value for name, value in kept.items() if isinstance(value, bool | int | float | str)}


def tree(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a configuration with its numbers, and objects in it as trees; what else is in it as text."""
    return {_key(name): _branch(value) for name, value in sorted(config.items()) if not _is_left_out(name, value)}


def text(value: Any, reference: Reference = class_name) -> str | None:
    """Returns a value on one line, as a person would write it; None for None.

    Args:
      value: Whatever may be in a configuration, or a Keras object.
      reference: Names the symbolic tensors in it.
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
    """Returns a line, or of a long one its beginning and a digest."""
    return line if len(line) <= _LONGEST else f"{line[: _LONGEST - 60]}… {digest(line.encode())}"


def digest(content: bytes) -> str:
    """Returns a short fingerprint."""
    return f"sha256:{hashlib.sha256(content).hexdigest()[:16]}"


def _items(config: Mapping[str, Any], sign: str, reference: Reference) -> list[str]:
    """Returns what of a configuration is worth a word: not what is nothing, or as usual."""
    kept = {str(k): text(v, reference) for k, v in config.items() if not _is_left_out(str(k), v)}
    return [f"{k}{sign}{v}" for k, v in sorted(kept.items()) if v is not None and v != str(_USUAL.get(k))]


def _object_text(value: Mapping[str, Any], reference: Reference) -> str:
    """Returns a serialized object, function or lambda as text; nothing for a plain dict."""
    if set(value) == {"value"} and isinstance(value["value"], list | tuple) and len(value["value"]) == 3:
        return "<lambda>"  # of which Keras keeps code, defaults and closure
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
    """Returns a number or text; of a float32, the number that a person wrote. Of anything else, only the class."""
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and np.isfinite(value) and abs(value) < 1e30 and float(np.float32(value)) == value:
        return float(str(np.float32(value)))
    return value if isinstance(value, bool | int | float | str | slice | type(...)) else class_name(value)


def _is_left_out(key: str, value: Any) -> bool:
    is_initializer = isinstance(value, Mapping) and value.get("module") == "keras.initializers"
    return value is None or key in _DROPPED or key.endswith("_initializer") or is_initializer


def _key(name: str) -> str:
    return re.sub(r"[.\[\]]", "_", str(name)) or "_"
