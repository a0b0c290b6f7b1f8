"""The callbacks that `fit` is given, in whatever form: which of them are called, and which cannot be."""

import logging
from typing import Any

import keras

from everstep.errors import UsageError

logger = logging.getLogger(__name__)


def accepted(given: Any, keeps: bool = True) -> list[keras.callbacks.Callback]:
    """Returns callbacks as a flat list.

    Args:
      given: None, a callback, a `CallbackList`, or any nesting of them.
      keeps: Whether the run has a directory that it resumes from.

    Raises:
      UsageError: Something in it is no callback, or would be relied on and cannot be.
    """
    flat = [callback for each in keras.tree.flatten(given) if each is not None for callback in _of(each)]
    backups = [callback for callback in flat if isinstance(callback, keras.callbacks.BackupAndRestore)]
    if backups and not keeps:
        raise UsageError(
            "callbacks: BackupAndRestore: the run has no directory to go on from: leave it out and pass model_dir=…, a "
            "new directory, which saves more than it and resumes inside an epoch"
        )
    if backups:
        logger.warning(
            "BackupAndRestore is left out: it would put older weights in place of those that the run goes on from; "
            "a run with a directory resumes by itself"
        )
    return [callback for callback in flat if callback not in backups]


def _of(each: Any) -> list[keras.callbacks.Callback]:
    if isinstance(each, keras.callbacks.CallbackList):
        return list(each.callbacks)
    if isinstance(each, keras.callbacks.Callback):
        return [each]
    name = getattr(each, "__name__", type(each).__name__)
    made = isinstance(each, type) and issubclass(each, keras.callbacks.Callback)
    tip = f"write {name}(…)" if made else "keras.callbacks.LambdaCallback makes one of functions"
    raise UsageError(f"callbacks: received {name}, which is no keras.callbacks.Callback: {tip}")


def looks_at_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether one of Keras's own callbacks was told to do something at batches, not only at an epoch's end."""
    counts = [getattr(callback, name, "epoch") for name in ("save_freq", "update_freq")]
    return any(count != "epoch" for count in counts) or bool(getattr(callback, "_should_trace", False))
