"""The history of a training loop of the user's own, as Keras's `History`."""

from typing import Any

import keras
import numpy as np

from everstep.errors import UsageError


def as_history(history: Any) -> keras.callbacks.History:
    """Returns the history of a custom loop as a Keras History.

    Args:
      history: A History, which is returned; or numbers by metric, one per epoch: a dictionary, a DataFrame.

    Raises:
      UsageError: It is something else.
    """
    if isinstance(history, keras.callbacks.History):
        return history
    if not hasattr(history, "keys"):
        raise UsageError('expected numbers by metric, as {"loss": [0.5, 0.4]}', key="history", received=history)
    result = keras.callbacks.History()
    for name in history.keys():  # noqa: SIM118 - a DataFrame iterates over columns, but is no Mapping
        try:
            numbers = np.asarray(history[name], np.float64).reshape(-1).tolist()
        except (TypeError, ValueError):
            raise UsageError(
                "expected a number per epoch", key=f"history[{str(name)!r}]", received=history[name]
            ) from None
        result.history[str(name)] = numbers
    result.epoch = list(range(max(map(len, result.history.values()), default=0)))
    return result
