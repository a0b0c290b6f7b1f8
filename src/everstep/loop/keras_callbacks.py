"""Keras callbacks around a loop whose windows are epochs.

Epoch hooks run exactly when Keras would run them. The batch hooks of Keras's own callbacks run once per loop, on
that loop's logs; a callback of the user's that has batch hooks makes the engine run single steps, and says so.

What callbacks remember is a part of a run's state. An attempt that goes on calls `on_train_begin`, which resets them,
and then sets them back. A checkpoint at an epoch's end is taken before the next `on_epoch_begin`, so that each epoch
begins and ends once, whatever the attempts. One taken inside an epoch is of callbacks that have seen its beginning.
They see it again, because they may open there what cannot be saved, a clock or a progress bar; what it changes is set
back.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from everstep.engine.logs import floats, whole
from everstep.errors import UsageError, nearest, own_frames, wants_traceback
from everstep.loop.callback_state import CallbackState
from everstep.loop.epoch_lengths import OPEN, EpochLengths
from everstep.loop.given_callbacks import accepted, looks_at_batches
from everstep.loop.plain_values import decode, encode
from everstep.optim.loss_scale import UPDATES
from everstep.types import Logs, State

BETWEEN, TRAINING, TESTING = "between epochs", "training", "testing"
"""Where callbacks are: `on_epoch_begin` leads from the first to the second, `on_test_begin` to the third, and
`on_epoch_end` back."""

_TRAIN_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


class KerasCallbacks:
    """Calls a list of Keras callbacks from the controller's actions; a part of the state it saves.

    Args:
      callbacks: The user's callbacks, in any form that `fit` takes; a History is added.
      model: The model they look at.
      epochs: How many there will be.
      steps: Steps per epoch; or where epochs begin and end, for those that differ, or that nobody knows yet.
      validates: Whether each epoch ends with an evaluation; or a function that tells of each epoch, counted from 0.
      first_epoch: The epoch that a run begins with which does not go on from a checkpoint.
      verbose: What callbacks are told of how much to say.
      told: Called with each epoch and its logs, when callbacks have seen them.
    """

    def __init__(
        self,
        callbacks: Any,
        model: keras.Model,
        epochs: int,
        steps: int | EpochLengths,
        validates: bool | Callable[[int], bool],
        *,
        first_epoch: int = 0,
        verbose: Any = 0,
        told: Callable[[int, Logs], None] = lambda epoch, logs: None,
    ) -> None:
        self.model, self.epochs, self.first_epoch = model, epochs, first_epoch
        self.lengths = steps if isinstance(steps, EpochLengths) else EpochLengths(steps)
        self._validates = validates if callable(validates) else lambda epoch: bool(validates)
        self._told = told
        self.list = keras.callbacks.CallbackList(
            accepted(callbacks),
            add_history=True,
            model=model,
            epochs=epochs,
            steps=self.lengths.steps or self.lengths.batches,
            verbose=verbose,
        )
        self._state = CallbackState(self.list.callbacks)
        self.per_call = int(getattr(model, "steps_per_execution", None) or 1)
        self.history.on_train_begin()  # it has its list of epochs also where there is nothing left to train
        self.phase, self._epoch = BETWEEN, 0
        self._logs: Logs = {}

    @property
    def history(self) -> keras.callbacks.History:
        """What `fit` returns."""
        return self.model.history

    @property
    def steps(self) -> int:
        """Steps of an epoch that is not cut short, where they are known."""
        return self.lengths.length or OPEN

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

    # -- the state ---------------------------------------------------------------------------------------------------

    name = "callbacks"

    def get(self) -> tuple[State, dict[str, Any]]:
        """Returns what they remember and where they are."""
        arrays, each = self._state.get()
        stop = bool(self.model.stop_training) and self.phase != BETWEEN  # then it has been obeyed
        place = {"phase": self.phase, "epoch": self._epoch, "stop": stop}
        place |= {"batches": self.lengths.batches, "first_epoch": self.lengths.first_epoch}
        return arrays, {**place, "logs": encode(floats(self._logs), "", {}), "each": each}

    def prepare(self, meta: dict[str, Any]) -> None:
        """Checks that these are the callbacks that were saved, and learns where they were.

        Raises:
          UsageError: They are others.
        """
        self._state.prepare(meta["each"])
        self.phase, self._epoch = meta["phase"], meta["epoch"]
        self.lengths.batches = self.lengths.batches or meta.get("batches")
        self.lengths.first_epoch = meta.get("first_epoch", 0)

    def set(self, arrays: State, meta: dict[str, Any]) -> None:
        """Goes on from what `get` returned."""
        self._state.set(arrays, meta["each"])
        self.phase, self._epoch = meta["phase"], meta["epoch"]
        self._logs = whole(decode(meta["logs"], {}))
        self.model.stop_training = meta["stop"]

    # -- hooks -------------------------------------------------------------------------------------------------------

    def begin(self, step: int, going_on: bool) -> None:
        """Before the first step of an attempt; `going_on` when the state will be set next."""
        self.model.stop_training = False
        with self._state.going_on() if going_on else contextlib.nullcontext():
            self.list.on_train_begin()
        self._state.look()
        if self.phase != BETWEEN:
            self.list.on_epoch_begin(self._epoch)
        if self.phase == TRAINING and not self.trained(step):
            self.begin_batch(step - self.lengths.first(step))
        if self.phase == TESTING:
            self.list.on_test_begin()

    def trained(self, step: int) -> bool:
        """Whether the epoch that has begun has all its steps."""
        end = self.lengths.begin(self._epoch + 1)
        return end is not None and step >= end

    def evaluation_due(self, step: int, stopped: bool) -> bool:
        """Whether the epoch is to be evaluated now: it is trained, or as far as it will be, and one that is."""
        ended = self.phase == TRAINING and (stopped or self.trained(step))
        return self.phase == TESTING or (ended and self._validates(self._epoch))

    def begin_epoch(self, step: int) -> None:
        """Before an epoch's first step, or the first one after a stop inside it."""
        self._epoch, self.phase = self.lengths.number(step), TRAINING
        self.list.on_epoch_begin(self._epoch)
        self.begin_batch(step - self.lengths.first(step))

    # Keras calls the hooks of a batch once for `steps_per_execution` of them: at the first one with its index, and
    # after the last with the index that this one has, or would have in an epoch that is longer.

    def due(self, done: int) -> bool:
        """Whether the hooks of batches are called when so many steps, which are not the last ones, are done."""
        return done % self.per_call == 0

    def begin_batch(self, done: int) -> None:
        """Before a training step, when so many of the epoch are done."""
        if done % self.per_call == 0:
            self._call(_TRAIN_HOOKS[0], done, {}, own=False)

    def end_batch(self, done: int, logs: Mapping[str, float]) -> None:
        """After a training step, when so many of the epoch are done."""
        self._call(_TRAIN_HOOKS[1], self._last_index(done), _training(logs), own=False)

    def begin_test_batch(self, done: int) -> None:
        """Before a validation step, when so many are done."""
        self._call(_TEST_HOOKS[0], done, {}, own=False)

    def end_test_batch(self, done: int, logs: Mapping[str, float]) -> None:
        """After a validation step, when so many are done."""
        self._call(_TEST_HOOKS[1], self._last_index(done), _renamed(logs, "validation_loss"), own=False)

    def _last_index(self, done: int) -> int:
        return -(-done // self.per_call) * self.per_call - 1

    def after_training(self, step: int, logs: Mapping[str, Any]) -> None:
        """After an epoch's training, which ended with so many steps: a train action."""
        self._logs = _training(logs)
        last = self.lengths.done(step) - 1
        self._call(_TRAIN_HOOKS[0], last, {}, own=True)
        self._call(_TRAIN_HOOKS[1], last, self._logs, own=True)
        if not self._validates(self._epoch):
            self._end_epoch()
            return
        self.list.on_test_begin()
        self.phase = TESTING

    def after_evaluation(self, logs: Mapping[str, Any]) -> None:
        """After an epoch's evaluation: an eval action."""
        if self.phase != TESTING:  # of an epoch that ended without one, in an attempt that had nothing to evaluate
            return
        validation = _renamed(logs, "validation_loss")
        self._call(_TEST_HOOKS[0], 0, {}, own=True)
        self._call(_TEST_HOOKS[1], 0, validation, own=True)
        self.list.on_test_end(validation)
        self._logs |= {f"val_{name}": value for name, value in validation.items()}
        self._end_epoch()

    def note_failure(self, logs: Mapping[str, Any]) -> None:
        """Adds the epoch that training failed in to the history, with what is known of it; no hook is called."""
        unknown = {"val_loss": math.nan} if self._validates(self._epoch) else {}
        self.history.on_epoch_end(self._epoch, {**_training(logs), **unknown})

    def _end_epoch(self) -> None:
        self.phase = BETWEEN
        with self._monitors_explained():
            self.list.on_epoch_end(self._epoch, self._logs)
        self._told(self._epoch, self._logs)
        if self.model.stop_training or self._epoch + 1 >= self.epochs:
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # Keras's own averages
            self.list.on_train_end(self._logs)

    @contextlib.contextmanager
    def _monitors_explained(self) -> Iterator[None]:
        """A callback that monitors what nobody logs: Keras only says that it does not know which way is better."""
        try:
            yield
        except ValueError as error:
            monitors = [(type(c).__name__, c.monitor) for c in self.list.callbacks if hasattr(c, "monitor")]
            missing = [(name, key) for name, key in monitors if isinstance(key, str) and key not in self._logs]
            if "monitor" not in str(error) or not missing or own_frames(error, below=__file__):
                raise
            name, key = missing[0]
            text = f"callbacks: {name}(monitor={key!r}): nothing of that name is logged; {nearest(key, self._logs)}"
            raise UsageError(text) from (error if wants_traceback() else None)

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
    """Whether the batch hooks are Keras's, not a function or subclass of the user's, and one call an epoch will do."""
    if any(name in vars(callback) for name in hooks) or looks_at_batches(callback):
        return False
    default = keras.callbacks.Callback
    owners = [getattr(type(callback), name) for name in hooks]
    written = [hook for hook, name in zip(owners, hooks, strict=True) if hook is not getattr(default, name)]
    return all(hook.__module__.split(".")[0] == "keras" for hook in written)


def _training(logs: Mapping[str, Any]) -> Logs:
    return _renamed(logs, "training_loss")


def _renamed(logs: Mapping[str, Any], loss: str) -> Logs:
    """Returns the logs as `fit` names them, those that are arrays in one piece."""
    ours = {"learning_rate", "steps_per_second", "eval_seconds", UPDATES}
    return whole({"loss" if name == loss else name: value for name, value in logs.items() if name not in ours})
