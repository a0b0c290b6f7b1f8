"""The names of optimizers, losses and metrics, checked before a model is compiled with them.

Keras looks up a loss only in the first step, and reports it in a traceback of many lines.
"""

from collections.abc import Callable, Iterable
from typing import Any

import keras

from everstep.errors import UsageError, nearest

_BY_OUTPUT = ("accuracy", "acc", "crossentropy", "ce")
"""Names that Keras resolves to a metric when it sees the outputs of the model."""

_SHORT = ("bce", "kld", "mae", "mape", "mse", "msle")
"""Short names of losses and metrics."""


def require_known_names(optimizer: Any, loss: Any, metrics: Any, own: Iterable[str] = ()) -> None:
    """Refuses names that Keras does not know; call it in the scope of the user's own objects.

    Args:
      optimizer: As for `compile`.
      loss: As for `compile`.
      metrics: As for `compile`.
      own: The names of the user's own objects, to suggest.

    Raises:
      UsageError: A name is unknown: its key is `optimizer`, `loss` or `metrics`, and the remedy the nearest names.
    """
    own = list(own)
    if isinstance(optimizer, str):
        classes = [name for name in _public(keras.optimizers) if name[0].isupper() and name != "Optimizer"]
        _require(keras.optimizers.get, "optimizer", optimizer, [*map(str.lower, classes), *own])
    for name in keras.tree.flatten(loss):
        if name is not None and not callable(name):
            _require(keras.losses.get, "loss", name, [*_public(keras.losses), *_SHORT, *own])
    if isinstance(metrics, str):
        raise UsageError("expected a list of metrics", key="metrics", received=metrics, remedy=f"write [{metrics!r}]")
    for name in keras.tree.flatten(metrics):
        if isinstance(name, str) and name.lower() not in _BY_OUTPUT:
            _require(keras.metrics.get, "metrics", name, [*_public(keras.metrics), *_SHORT, *_BY_OUTPUT, *own])


def _require(get: Callable[[Any], Any], key: str, name: Any, known: Iterable[str]) -> None:
    try:
        get(name)
    except ValueError:
        raise UsageError("unknown to Keras", key=key, received=name, remedy=nearest(str(name), known)) from None


def _public(module: Any) -> list[str]:
    """Returns the names that users may write of what a module of Keras has."""
    others = ("deserialize", "get", "legacy", "schedules", "serialize")
    return [name for name in dir(module) if not name.startswith("_") and name not in others]
