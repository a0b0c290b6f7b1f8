"""The best epoch of a History, for the last lines of a run."""

from collections.abc import Callable, Sequence

import keras
import numpy as np

from everstep.run import best_value


def best_epoch(
    history: keras.callbacks.History,
    callbacks: Sequence[keras.callbacks.Callback],
    is_validated: Callable[[int], bool],
) -> str:
    """Returns the best value and its epoch: of what a callback such as `EarlyStopping` monitors, else of the loss."""
    monitoring = [callback for callback in callbacks if getattr(callback, "monitor", None) in history.history]
    name = monitoring[0].monitor if monitoring else "val_loss" if "val_loss" in history.history else "loss"
    mode = monitoring[0].mode if monitoring and hasattr(monitoring[0], "mode") else "auto"
    values, epochs = history.history.get(name, []), history.epoch
    if len(values) < len(epochs):
        epochs = [epoch for epoch in epochs if is_validated(epoch)]
    pairs = [(epoch, value) for epoch, value in zip(epochs, values, strict=False) if np.ndim(value) == 0]
    points = [(f"epoch {epoch + 1}", float(value)) for epoch, value in pairs]
    return best_value(name, points, {"min": "lower", "max": "higher"}.get(mode))
