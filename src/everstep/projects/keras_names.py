"""Optimizers, losses and metrics by name, checked before a model is compiled with them.

Keras looks up losses and metrics only in the first step, and reports an unknown one in a traceback of many lines.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras

from everstep.config import Config
from everstep.errors import UsageError, nearest

_BY_OUTPUT = ("accuracy", "acc", "crossentropy", "ce")
"""Names that Keras resolves to a metric when it sees the outputs of the model."""

_SHORT = ("bce", "kld", "mae", "mape", "mse", "msle")
"""Short names of losses and metrics."""

_OTHERS = {
    *("Loss", "LossScaleOptimizer", "Metric", "MultiOptimizer", "Optimizer"),
    *("deserialize", "get", "legacy", "schedules", "serialize"),
}
"""What the modules of Keras have beside what users name."""


def plain_names(value: Any) -> Any:
    """Returns an argument of `compile` from a configuration: names, in lists or by output, as plain dicts and lists."""
    if isinstance(value, Config):
        return value.as_dict()
    return [plain_names(each) for each in value] if isinstance(value, list | tuple) else value


def require_optimizer(optimizer: Any, key: str, own: Iterable[str] = ()) -> None:
    """Refuses an optimizer that Keras does not know; call it in the scope of the user's own objects.

    Args:
      optimizer: As for `compile`.
      key: What the user calls it.
      own: The names of the user's own objects, to suggest.

    Raises:
      UsageError: Names it, with the nearest ones.
    """
    if not isinstance(optimizer, keras.Optimizer):
        _require(keras.optimizers.get, optimizer, key, [*map(str.lower, _classes(keras.optimizers)), *own])


def require_losses(loss: Any, key: str, own: Iterable[str] = ()) -> None:
    """Refuses losses that Keras does not know, in a list or by output; as `require_optimizer`."""
    for each in _named(loss):
        _require(keras.losses.get, each, key, [*_public(keras.losses), *_SHORT, *own])


def require_metrics(metrics: Any, key: str, own: Iterable[str] = ()) -> None:
    """Refuses metrics that Keras does not know, in a list or by output; as `require_optimizer`."""
    for each in _named(metrics):
        if not (isinstance(each, str) and each.lower() in _BY_OUTPUT):
            _require(keras.metrics.get, each, key, [*_public(keras.metrics), *_SHORT, *_BY_OUTPUT, *own])


def _named(value: Any) -> list[Any]:
    """Returns what stands for a loss or a metric: names, and configurations of Keras objects."""
    if isinstance(value, dict) and "class_name" in value:
        return [value]
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [name for part in parts for name in _named(part)]
    return [] if value is None or callable(value) else [value]


def _require(get: Callable[[Any], Any], value: Any, key: str, known: Iterable[str]) -> None:
    try:
        get(value)
    except (ValueError, TypeError) as error:
        name = str(value.get("class_name")) if isinstance(value, dict) else str(value)
        if name in known:  # its configuration is wrong
            text = " ".join(str(error).split())
            raise UsageError(f"cannot be created: {text}", key=key, received=value) from error
        raise UsageError("unknown to Keras", key=key, received=value, remedy=nearest(name, known)) from None


def _classes(module: Any) -> list[str]:
    return [name for name in _public(module) if name[0].isupper()]


def _public(module: Any) -> list[str]:
    """Returns the names that users may write of what a module of Keras has."""
    return [name for name in dir(module) if not name.startswith("_") and name not in _OTHERS]
