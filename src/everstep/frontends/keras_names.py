"""Losses and metrics by name, checked before a model is compiled: Keras finds out in the middle of the first step."""

from collections.abc import Callable
from typing import Any

import keras

from everstep.config import Config
from everstep.errors import UsageError, did_you_mean

_BY_OUTPUT = ("accuracy", "acc", "crossentropy", "ce")
"""Names that Keras resolves to a metric when it sees the outputs of the model."""

_OTHERS = {"Loss", "Metric", "Mean", "MeanMetricWrapper", "Sum", "deserialize", "get", "serialize"}
"""What `keras.losses` and `keras.metrics` have beside losses and metrics."""


def plain_names(value: Any) -> Any:
    """Returns an argument of `compile` from a configuration: names, in lists or by output, as plain dicts and lists."""
    if isinstance(value, Config):
        return value.as_dict()
    return [plain_names(each) for each in value] if isinstance(value, list | tuple) else value


def require_losses(loss: Any, key: str) -> None:
    """Refuses a loss that Keras does not know.

    Args:
      loss: A loss, or losses by output or in a list.
      key: What the user calls it.

    Raises:
      UsageError: Names it, with the nearest ones.
    """
    for name in _named(loss):
        _require_known(keras.losses.get, dir(keras.losses), name, key)


def require_metrics(metrics: Any, key: str) -> None:
    """Refuses metrics that Keras does not know; as `require_losses`."""
    for name in _named(metrics):
        if not (isinstance(name, str) and name.lower() in _BY_OUTPUT):
            _require_known(keras.metrics.get, [*_BY_OUTPUT, *dir(keras.metrics)], name, key)


def _named(value: Any) -> list[Any]:
    """Returns what stands for a loss or a metric: names, and configurations of Keras objects."""
    if isinstance(value, dict) and "class_name" in value:
        return [value]
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
        return [name for part in parts for name in _named(part)]
    return [] if value is None or callable(value) else [value]


def _require_known(get: Callable[[Any], Any], known: list[str], name: Any, key: str) -> None:
    try:
        get(name)
    except (ValueError, TypeError):
        names = [each for each in known if not each.startswith("_") and each not in _OTHERS]
        remedy = did_you_mean(str(name), names)
        raise UsageError("unknown to Keras", key=key, received=name, remedy=remedy) from None
