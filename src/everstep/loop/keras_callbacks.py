"""Keras callbacks around a loop whose windows are epochs.

Epoch hooks run exactly when Keras would run them. The batch hooks of Keras's own callbacks run once per loop, on
that loop's logs; a callback of the user's that has batch hooks makes the engine run single steps, and says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras

from everstep.types import Logs

_TRAIN_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


class KerasCallbacks:
    """Calls a list of Keras callbacks from the controller's actions.

    Args:
      callbacks: The user's callbacks; a History is added.
      model: The model they look at.
      epochs: How many there will be.
      steps: Steps per epoch.
      validates: Whether each epoch ends with an evaluation.
    """

    def __init__(
        self,
        callbacks: Sequence[keras.callbacks.Callback],
        model: keras.Model,
        epochs: int,
        steps: int,
        validates: bool,
    ) -> None:
        self.model, self.epochs, self.steps, self.validates = model, epochs, steps, validates
        self.list = keras.callbacks.CallbackList(
            list(callbacks), add_history=True, model=model, epochs=epochs, steps=steps, verbose=0
        )
        self.history.on_train_begin()  # it has its list of epochs also where there is nothing left to train
        self._logs: Logs = {}
        self._epoch = 0

    @property
    def history(self) -> keras.callbacks.History:
        """What `fit` returns."""
        return self.model.history

    @property
    def single_steps(self) -> list[str]:
        """The user's callbacks that want to be called at every training batch, by class name."""
        return self._watching(_TRAIN_HOOKS)

    @property
    def single_evaluations(self) -> list[str]:
        """Those that want to be called at every validation batch."""
        return self._watching(_TEST_HOOKS)

    def _watching(self, hooks: Sequence[str]) -> list[str]:
        return [type(c).__name__ for c in self.list.callbacks if _wants(c, hooks) and not _is_keras_own(c, hooks)]

    def begin(self, epoch: int, batch: int) -> None:
        """Before the first step of an attempt."""
        self.model.stop_training = False
        self.list.on_train_begin()
        self._begin_epoch(epoch, batch)

    def begin_batch(self, index: int) -> None:
        """Before a single training step."""
        self._call(_TRAIN_HOOKS[0], index, {}, own=False)

    def end_batch(self, index: int, logs: Mapping[str, float]) -> None:
        """After a single training step."""
        self._call(_TRAIN_HOOKS[1], index, _training(logs), own=False)

    def begin_test_batch(self, index: int) -> None:
        """Before a single validation step."""
        self._call(_TEST_HOOKS[0], index, {}, own=False)

    def end_test_batch(self, index: int, logs: Mapping[str, float]) -> None:
        """After a single validation step."""
        self._call(_TEST_HOOKS[1], index, _renamed(logs, "validation_loss"), own=False)

    def after_training(self, logs: Mapping[str, Any]) -> None:
        """After an epoch's training: a train action."""
        self._logs = _training(logs)
        self._call(_TRAIN_HOOKS[0], self.steps - 1, {}, own=True)
        self._call(_TRAIN_HOOKS[1], self.steps - 1, self._logs, own=True)
        if self.validates:
            self.list.on_test_begin()
        else:
            self._end_epoch()

    def after_evaluation(self, logs: Mapping[str, Any]) -> None:
        """After an epoch's evaluation: an eval action."""
        validation = _renamed(logs, "validation_loss")
        self._call(_TEST_HOOKS[0], 0, {}, own=True)
        self._call(_TEST_HOOKS[1], 0, validation, own=True)
        self.list.on_test_end(validation)
        self._logs |= {f"val_{name}": value for name, value in validation.items()}
        self._end_epoch()

    def _begin_epoch(self, epoch: int, batch: int = 0) -> None:
        self._epoch = epoch
        self.list.on_epoch_begin(epoch)
        self.begin_batch(batch)

    def _end_epoch(self) -> None:
        self.list.on_epoch_end(self._epoch, self._logs)
        if self.model.stop_training or self._epoch + 1 >= self.epochs:
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # Keras's own averages
            self.list.on_train_end(self._logs)
        else:
            self._begin_epoch(self._epoch + 1)

    def _call(self, hook: str, index: int, logs: Logs, own: bool) -> None:
        hooks = _TEST_HOOKS if hook in _TEST_HOOKS else _TRAIN_HOOKS
        for callback in self.list.callbacks:
            if _wants(callback, hooks) and _is_keras_own(callback, hooks) == own:
                getattr(callback, hook)(index, logs)


def _wants(callback: keras.callbacks.Callback, hooks: Sequence[str]) -> bool:
    """Whether a callback does anything at a batch."""
    default = keras.callbacks.Callback
    return any(name in vars(callback) or getattr(type(callback), name) is not getattr(default, name) for name in hooks)


def _is_keras_own(callback: keras.callbacks.Callback, hooks: Sequence[str]) -> bool:
    """Whether the batch hooks are Keras's, not a function or subclass of the user's."""
    if any(name in vars(callback) for name in hooks):
        return False
    default = keras.callbacks.Callback
    owners = [getattr(type(callback), name) for name in hooks]
    written = [hook for hook, name in zip(owners, hooks, strict=True) if hook is not getattr(default, name)]
    return all(hook.__module__.split(".")[0] == "keras" for hook in written)


def _training(logs: Mapping[str, Any]) -> Logs:
    return _renamed(logs, "training_loss")


def _renamed(logs: Mapping[str, Any], loss: str) -> Logs:
    """Returns the logs as `fit` names them."""
    ours = {"learning_rate", "steps_per_second", "eval_seconds"}
    return {"loss" if name == loss else name: value for name, value in logs.items() if name not in ours}
