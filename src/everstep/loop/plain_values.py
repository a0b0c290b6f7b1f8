"""Plain Python values as JSON and back, exactly, with arrays put aside.

None, bools, integers, strings, finite floats and lists are stored as they are. Everything else is an object with one
key that names its type: `{"float": "nan"}`, `{"tuple": […]}`, `{"dict": [[key, value], …]}`, `{"array": "name"}`.
Python writes a float with enough digits to read the same one back, so nothing is lost. A long list of numbers, such as
the losses of thousands of epochs, is put aside as an array, too: `{"numbers": "name"}`. A save would otherwise format
every one of them again.
"""

import json
import math
import random
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from everstep.types import State

NUMBERS = "#numbers"
"""The last part of the name of an array that is a list of numbers."""

_LONG = 1000  # from this many on, a list of numbers is put aside as an array


class NotPlainError(Exception):
    """A value contains something that is neither plain nor an array; the message is the name of its type."""


def encode(value: Any, name: str, arrays: State) -> Any:
    """Returns a value as JSON; its arrays, not copied, are added to `arrays` under `name` and names below it.

    Example: `encode({"best": math.inf, "scores": np.zeros(3)}, "mine", arrays := {})` adds one array, `mine/scores`.

    Raises:
      NotPlainError: It contains something that only pickle could save.
    """
    try:
        return _encode(value, name, arrays)
    except RecursionError:
        raise NotPlainError(f"{type(value).__name__} that contains itself") from None


def decode(value: Any, arrays: State) -> Any:
    """Returns the value that was passed to `encode`, with copies of its arrays."""
    if isinstance(value, list):
        return [decode(item, arrays) for item in value]
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _DECODE[kind](content, arrays)


def fingerprint(encoded: Any, arrays: State) -> str:
    """Returns a string that differs if the value does; arrays are represented by their checksums."""
    return json.dumps([encoded, [[name, a.dtype.name, a.shape, _checksum(a)] for name, a in arrays.items()]])


def _checksum(array: np.ndarray) -> int:
    return zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)


def _encode(value: Any, name: str, arrays: State) -> Any:
    # Exactly these types: restoring a subclass as its base class would silently lose something.
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"float": repr(value)}
    if kind is list:
        if len(value) >= _LONG and (array := _as_numbers(value)) is not None:
            arrays[f"{name}/{NUMBERS}"] = array
            return {"numbers": f"{name}/{NUMBERS}"}
        return [_encode(item, f"{name}/{index}", arrays) for index, item in enumerate(value)]
    if kind is tuple:
        return {"tuple": _encode(list(value), name, arrays)}
    if kind is dict:
        return {"dict": [_pair(key, item, index, name, arrays) for index, (key, item) in enumerate(value.items())]}
    return _encode_numbers(value, name, arrays)


def _as_numbers(values: list[Any]) -> np.ndarray | None:
    """Returns a list as an array that gives back exactly the same numbers; None if there is none."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, np.float64)
    if kinds == {int} and min(values) >= -(2**63) and max(values) < 2**63:
        return np.array(values, np.int64)
    return None


def _pair(key: Any, value: Any, index: int, name: str, arrays: State) -> list[Any]:
    below = key if isinstance(key, str) and key.isidentifier() else f"#{index}"
    return [_encode(key, f"{name}/#{index}#key", arrays), _encode(value, f"{name}/{below}", arrays)]


def _encode_numbers(value: Any, name: str, arrays: State) -> Any:
    """Encodes the types of NumPy and `random`."""
    if isinstance(value, np.generic) and _storable(value.dtype):
        number = float(value) if "float" in value.dtype.name else value.item()
        return {"scalar": [value.dtype.name, _encode(number, name, arrays)]}
    if type(value) is np.ndarray and _storable(value.dtype):
        arrays[name] = value
        return {"array": name}
    if type(value) is random.Random:
        return {"random": _encode(value.getstate(), name, arrays)}
    if type(value) is np.random.Generator:
        return {"generator": _encode(value.bit_generator.state, name, arrays)}
    if type(value) is np.random.RandomState:
        return {"random_state": _encode(value.get_state(legacy=False), name, arrays)}
    raise NotPlainError(type(value).__name__)


def _storable(dtype: np.dtype) -> bool:
    """Whether it is a number of at most 64 bits; `kind` does not cover types such as bfloat16."""
    return (dtype.kind in "fiub" or "float" in dtype.name) and dtype.itemsize <= 8 and dtype.isnative


def _generator(content: Any, arrays: State) -> np.random.Generator:
    state = decode(content, arrays)
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)


def _random_state(content: Any, arrays: State) -> np.random.RandomState:
    state = decode(content, arrays)
    generator = np.random.RandomState(getattr(np.random, state["bit_generator"])())
    generator.set_state(state)
    return generator


def _random(content: Any, arrays: State) -> random.Random:
    generator = random.Random()
    generator.setstate(decode(content, arrays))
    return generator


_DECODE: dict[str, Callable[[Any, State], Any]] = {
    "float": lambda content, arrays: float(content),
    "tuple": lambda content, arrays: tuple(decode(content, arrays)),
    "dict": lambda content, arrays: {decode(key, arrays): decode(value, arrays) for key, value in content},
    "scalar": lambda content, arrays: np.dtype(content[0]).type(decode(content[1], arrays)),
    "array": lambda content, arrays: np.array(arrays[content]),
    "numbers": lambda content, arrays: arrays[content].tolist(),
    "random": _random,
    "generator": _generator,
    "random_state": _random_state,
}
