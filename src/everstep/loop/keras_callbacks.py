"""Keras callbacks as a hook of a loop whose windows are epochs.

Epoch methods are called exactly when Keras would call them. The batch methods of Keras's own callbacks are called
once per epoch, with that epoch's logs; a user's callback with batch methods makes the engine run single steps, with a
warning.

The callbacks' state is part of the run's state. A resumed attempt calls `on_train_begin`, which resets them, and then
restores their state. At an epoch's end the checkpoint is saved before the next `on_epoch_begin`, so that each epoch
begins and ends once, however many attempts there are. After a resume inside an epoch its `on_epoch_begin` is called
again, because callbacks may open there what cannot be saved, a clock or a progress bar; then their state is restored.
"""

import contextlib
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras

from everstep.engine import floats, with_arrays
from everstep.errors import DivergedError, UsageError, nearest, own_frames, wants_traceback
from everstep.loop.callback_state import CallbackState
from everstep.loop.hooks import Hook
from everstep.loop.listener import Listener
from everstep.loop.plain_values import decode, encode
from everstep.loop.schedule import UNKNOWN_END, EpochSchedule, warn_of_data_end
from everstep.task.optim import UPDATES
from everstep.types import Logs, State

logger = logging.getLogger(__name__)

BETWEEN, TRAINING, TESTING = "between epochs", "training", "testing"
"""The phases of callbacks: `on_epoch_begin` leads to the second, `on_test_begin` to the third, `on_epoch_end` back."""

_TRAIN_HOOKS = ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end")
_TEST_HOOKS = ("on_test_batch_begin", "on_test_batch_end")


class KerasCallbacks(Hook):
    """Calls a list of Keras callbacks, and saves their state.

    Args:
      callbacks: The user's callbacks, in any form that `fit` takes; a History is added.
      model: The model that is set on the callbacks.
      schedule: The epochs; pass the same object to the controller.
      initial_epoch: The first epoch of a new run.
      verbose: The verbosity that is passed to the callbacks.
      listeners: Called at the end of an epoch, after the callbacks; they are hooks of the loop, too. Those with
        `get_state` and `set_state` are saved like callbacks, after those of the user.
      sees_divergence: Whether an epoch in which training diverged ends as any other, before training fails.
      history: The History to add; None for Keras's own. One of the user's takes its place.
    """

    name = "callbacks"

    def __init__(
        self,
        callbacks: Any,
        model: keras.Model,
        schedule: EpochSchedule,
        *,
        initial_epoch: int = 0,
        verbose: Any = 0,
        listeners: Sequence[Listener] = (),
        sees_divergence: bool = True,
        history: keras.callbacks.History | None = None,
    ) -> None:
        self.model, self.schedule, self._initial_epoch = model, schedule, initial_epoch
        self._listeners, given = listeners, accepted(callbacks)
        self.sees_divergence = sees_divergence
        has_history = any(isinstance(each, keras.callbacks.History) for each in given)
        self._added = [] if has_history or history is None else [history]
        self.list = keras.callbacks.CallbackList(
            [*given, *self._added],
            add_history=True,
            model=model,
            epochs=schedule.epochs,
            steps=schedule.steps or schedule.batches,
            verbose=verbose,
        )
        saved = [listener for listener in listeners if hasattr(listener, "get_state")]
        self._state = CallbackState([*self.list.callbacks[: len(given)], *saved, *self.list.callbacks[len(given) :]])
        self.per_call = int(getattr(model, "steps_per_execution", None) or 1)
        self.history.on_train_begin()  # creates its list of epochs, even if nothing is left to train
        self.phase, self._epoch = BETWEEN, 0
        self._has_ended = False  # whether `on_train_end` was called after the last epoch
        self._logs: Logs = {}
        self._unread: list[tuple[int, Mapping[str, Any]]] = []  # epochs that only the History has still to see
        self._evaluated_steps = self._num_steps = 0
        self._watches_steps = False

    @property
    def history(self) -> keras.callbacks.History:
        """What `fit` returns."""
        return self.model.history

    @property
    def acts(self) -> bool:
        """Whether anything but a History sees the end of an epoch; if not, the next epoch begins without a wait."""
        return bool(self._listeners) or any(
            type(each) is not keras.callbacks.History and each not in self._added for each in self.list.callbacks
        )

    @property
    def restored_step(self) -> int | None:
        """The end of the epoch whose weights `EarlyStopping(restore_best_weights=True)` has restored."""
        restoring = (each for each in self.list.callbacks if getattr(each, "restore_best_weights", False))
        best = [each.best_epoch for each in restoring if getattr(each, "best_weights", None) is not None]
        return self.schedule.epoch_start(best[-1] + 1) if best and self._has_ended else None

    @property
    def steps(self) -> int:
        """Steps of an epoch that is not cut short, where they are known."""
        return self.schedule.full_epoch_steps or UNKNOWN_END

    @property
    def single_steps(self) -> list[str]:
        """The user's callbacks that have methods for every training batch, by class name."""
        return self._watching(_TRAIN_HOOKS)

    @property
    def single_evaluations(self) -> list[str]:
        """Those that have methods for every validation batch."""
        return self._watching(_TEST_HOOKS)

    def _watching(self, hooks: Sequence[str]) -> list[str]:
        return [type(c).__name__ for c in self.list.callbacks if _wants(c, hooks) and not _is_keras_own(c, hooks)]

    # -- the state ---------------------------------------------------------------------------------------------------

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns the state of the callbacks, and their phase."""
        self._read_epochs()
        arrays, each = self._state.state()
        stop = bool(self.model.stop_training) and self.phase != BETWEEN  # between epochs training has stopped already
        place = {"phase": self.phase, "epoch": self._epoch, "stop": stop}
        place |= {"ended": self._has_ended, "batches": self.schedule.batches, "first_epoch": self.schedule.first_epoch}
        return arrays, {**place, "logs": encode(floats(self._logs), "", {}), "each": each}

    def check(self, meta: dict[str, Any]) -> None:
        """Checks that the same callbacks were saved, and restores their phase and the schedule.

        Raises:
          UsageError: Other callbacks were saved.
        """
        self._state.check(meta["each"])
        self.phase, self._epoch = meta["phase"], meta["epoch"]
        self.schedule.set_batches(meta.get("batches"))
        self.schedule.first_epoch = meta.get("first_epoch", 0)

    def restore(self, arrays: State, meta: dict[str, Any]) -> None:
        """Restores what `state` returned."""
        self._unread.clear()
        self._state.restore(arrays, meta["each"])
        self.phase, self._epoch = meta["phase"], meta["epoch"]
        self._has_ended = meta.get("ended", False)
        self._logs = with_arrays(decode(meta["logs"], {}))
        self.model.stop_training = meta["stop"]

    def setup(self, controller: Any) -> None:
        """Passes the controller to callbacks that have `set_controller`."""
        super().setup(controller)
        for callback in self.list.callbacks:
            if hasattr(callback, "set_controller"):
                callback.set_controller(controller)

    # -- events of the loop --------------------------------------------------------------------------------------------

    def on_restore(self, step: int | None) -> None:
        """A new run begins at `initial_epoch`, as if the epochs before it had been trained."""
        first, stream = self._initial_epoch, self.controller.trainer.train_stream
        if step is None and first and stream.is_counting_first_epoch:
            self.schedule.first_epoch = first
        elif step is None and first:
            self._start_at(self.schedule.epoch_start(first) or 0)
        if stream.is_counting_first_epoch and self.schedule.batches:
            stream.set_batches_per_epoch(self.schedule.batches)

    def _start_at(self, step: int) -> None:
        """Sets the step, and the position of the data, if its length is known, as if `step` steps had been trained."""
        trainer = self.controller.trainer
        batches = trainer.train_stream.batches_per_epoch
        epoch, batch = divmod(step, batches) if batches else (0, 0)
        state = trainer.engine.state()
        self.controller.recovery.remember_initial_infinities(trainer.non_finite(state))
        trainer.restore(state, {"step": step, "stream": {"epoch": epoch, "batch": batch}})
        self.controller.saver.start_at(step)

    def on_train_begin(self) -> None:
        """Calls `on_train_begin`; in a resumed run the variables are restored after it here, the state by the loop."""
        controller, trainer = self.controller, self.controller.trainer
        if controller.is_ending and self.phase == BETWEEN:
            return  # nothing is left to train: the callbacks are only restored
        if names := ", ".join(self.single_steps):
            logger.warning("running single steps: %s has methods for every batch", names)
            self._watches_steps = True
        # A custom train_step that runs uncompiled may set model.stop_training in any step.
        own_step = type(self.model).train_step is not keras.Model.train_step
        if names or (trainer.engine.is_eager and own_step):
            trainer.step_by_step()
        if names := ", ".join(self.single_evaluations):
            logger.warning("evaluating in single steps: %s has methods for every batch", names)
            self.watches_evaluation_batches = True
        resuming = controller.saver.is_restoring
        variables = trainer.engine.state() if resuming else None
        with controller.synced():
            self._begin(resuming)
        if variables is not None:
            trainer.engine.load(variables)

    def _begin(self, resuming: bool) -> None:
        step = self.controller.step
        self.model.stop_training = False
        with self._state.resuming() if resuming else contextlib.nullcontext():
            self.list.on_train_begin()
        self._state.observe()
        if self.phase != BETWEEN:
            self.list.on_epoch_begin(self._epoch)
        end = self.schedule.epoch_start(self._epoch + 1)
        if self.phase == TRAINING and not (end is not None and step >= end):
            self._begin_batch(step - self.schedule.current_epoch_start(step))
        if self.phase == TESTING:
            self.list.on_test_begin()

    def on_window_begin(self, step: int) -> None:
        """Before an epoch's first step, or the first step after a resume inside it."""
        if self.phase == TESTING:  # stopped before its evaluation, and trained further now
            self.phase = TRAINING
        if self.phase == TRAINING:
            return
        self._epoch, self.phase = self.schedule.epoch_of(step), TRAINING
        self._has_ended = False
        if not self.acts:
            return  # a History has no method for it
        with self.controller.synced():
            self.list.on_epoch_begin(self._epoch)
            self._begin_batch(step - self.schedule.current_epoch_start(step))

    def on_call_end(self, step: int) -> None:
        """Calls the batch methods of the user's callbacks; stops if `stop_training` was set, as Keras does."""
        if self._watches_steps:
            done, last = self.schedule.steps_done_in_epoch(step), self.schedule.window_end(step - 1) == step
            if not last and not self._due(done):
                return
            with self.controller.synced():
                self._end_batch(done)
                if not last and not self.model.stop_training:
                    self._begin_batch(done)
        self._stop_if_requested()  # any thread may have set model.stop_training

    def on_batches_counted(self, step: int) -> None:
        """Calls batch methods after the last steps of an epoch that is shorter than expected."""
        done = self.schedule.steps_done_in_epoch(step)
        if self._watches_steps and not self._due(done):
            with self.controller.synced():
                self._end_batch(done)

    def on_window_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """Ends the epoch, or begins its evaluation."""
        if not self.controller.stopped and self.schedule.is_cut_short(step):
            warn_of_data_end("steps_per_epoch")
        self._stop_if_requested()
        if not (self.acts or self.controller.is_ending or self.schedule.validates(self._epoch)):
            self._unread.append((self._epoch, logs))
            self.phase = BETWEEN
            return
        self._read_epochs()
        with self.controller.synced():
            self._logs = self._fit_logs(logs, "train")
            last = self.schedule.steps_done_in_epoch(step) - 1
            self._call(_TRAIN_HOOKS[0], last, {}, own=True)
            self._call(_TRAIN_HOOKS[1], last, self._logs, own=True)
            if self.schedule.validates(self._epoch):
                self.list.on_test_begin()
                self.phase = TESTING
            else:
                self._end_epoch()
        self._stop_if_requested()

    def on_evaluation_begin(self, step: int, num_steps: int) -> None:
        """Remembers the requested number of batches."""
        self._num_steps = num_steps

    def on_evaluation_batch_begin(self, done: int) -> None:
        """Before a validation step."""
        self._evaluated_steps = done
        if self._due(done):
            with self.controller.synced():
                if not done:
                    self.model.stop_evaluating = False
                self._call(_TEST_HOOKS[0], done, {}, own=False)

    def on_evaluation_batch_end(self, done: int) -> bool:
        """After a validation step; False ends the evaluation here, as in Keras."""
        self._evaluated_steps = done
        if not self._due(done):
            return True
        with self.controller.synced():
            self._end_test_batch(done, self.controller.trainer.engine.read("validation"))
        return not self.model.stop_evaluating

    def on_evaluation_end(self, step: int, logs: dict[str, Any]) -> None:
        """Ends the epoch."""
        with self.controller.synced():
            if self.watches_evaluation_batches and not self._due(self._evaluated_steps):
                self._end_test_batch(self._evaluated_steps, logs)  # the last call has fewer steps
            if self.phase == TESTING:
                validation = self._fit_logs(logs, "test")
                self._call(_TEST_HOOKS[0], 0, {}, own=True)
                self._call(_TEST_HOOKS[1], 0, validation, own=True)
                self.list.on_test_end(validation)
                self._logs |= {f"val_{name}": value for name, value in validation.items()}
                self._end_epoch()
        self._stop_if_requested()
        evaluated = self.controller.evaluator.evaluated_batches
        if evaluated < self._num_steps and not getattr(self.model, "stop_evaluating", False):
            warn_of_data_end("validation_steps")

    def _read_epochs(self) -> bool:
        """Adds the epochs that were not read yet to the history, up to one that failed; returns whether one did."""
        loss = self.controller.trainer.watched_log
        while self._unread:
            epoch, logs = self._unread.pop(0)
            self.list.on_epoch_end(epoch, self._fit_logs(logs, "train"))
            if not math.isfinite(logs.get(loss, 0.0)) and self.controller.recovery.handles_divergence:
                self._unread.clear()
                return True
        return False

    def on_exit(self, error: BaseException | None) -> None:
        """Completes the history, where training has diverged with the failed epoch; Keras calls no callback then."""
        has_failed_epoch = self._read_epochs()
        if isinstance(error, DivergedError) and not has_failed_epoch and self.phase != BETWEEN:
            self._add_failed_epoch()

    def _add_failed_epoch(self) -> None:
        """Adds the current epoch to the history, with its logs so far."""
        unknown = {"val_loss": math.nan} if self.schedule.validates(self._epoch) else {}
        logs = self._fit_logs(self.controller.trainer.window_logs(), "train")
        self.history.on_epoch_end(self._epoch, {**logs, **unknown})

    def _stop_if_requested(self) -> None:
        if self.model.stop_training:
            self.controller.stop(self._stop_reason())

    def _stop_reason(self) -> str:
        """Returns why training was stopped: what `EarlyStopping` has waited for, where it was that."""
        for callback in self.list.callbacks:
            if isinstance(callback, keras.callbacks.EarlyStopping) and callback.stopped_epoch:
                waited = "an epoch" if callback.patience <= 1 else f"{callback.patience} epochs"
                return f"{type(callback).__name__}, {callback.monitor} has not improved for {waited}"
        return "model.stop_training was set"

    # -- calls -------------------------------------------------------------------------------------------------------

    # Keras calls batch methods once per `steps_per_execution` steps: before the first with its index, and after the
    # last with the index that it has, or would have in a longer epoch.

    def _due(self, done: int) -> bool:
        """Whether batch methods are called after `done` steps that are not the last ones."""
        return done % self.per_call == 0

    def _begin_batch(self, done: int) -> None:
        if self._due(done):
            self._call(_TRAIN_HOOKS[0], done, {}, own=False)

    def _end_batch(self, done: int) -> None:
        logs = self.controller.trainer.engine.read("train")
        self._call(_TRAIN_HOOKS[1], self._last_index(done), self._fit_logs(logs, "train"), own=False)

    def _end_test_batch(self, done: int, logs: Mapping[str, float]) -> None:
        self._call(_TEST_HOOKS[1], self._last_index(done), self._fit_logs(logs, "test"), own=False)

    def _last_index(self, done: int) -> int:
        return -(-done // self.per_call) * self.per_call - 1

    def _end_epoch(self) -> None:
        self.phase = BETWEEN
        with self._monitors_explained():
            self.list.on_epoch_end(self._epoch, self._logs)
        for listener in self._listeners:
            listener.on_epoch_end(self._epoch, self._logs)
        if self.model.stop_training or self._epoch + 1 >= self.schedule.epochs:
            self.model.optimizer.finalize_variable_values(self.model.trainable_variables)  # Keras's own averages
            self.list.on_train_end(self._logs)
            self._has_ended = True

    @contextlib.contextmanager
    def _monitors_explained(self) -> Iterator[None]:
        """Explains the error of a callback that monitors a name which is not logged; Keras's message does not."""
        try:
            yield
        except ValueError as error:
            monitors = [(type(c).__name__, c.monitor) for c in self.list.callbacks if hasattr(c, "monitor")]
            missing = [(name, key) for name, key in monitors if isinstance(key, str) and key not in self._logs]
            if "monitor" not in str(error) or not missing or own_frames(error, below=__file__):
                raise
            name, key = missing[0]
            cause = error if wants_traceback() else None
            remedy = nearest(key, self._logs)
            raise UsageError(
                f"{name}(monitor={key!r}): nothing of that name is logged", key="callbacks", remedy=remedy
            ) from cause

    def _fit_logs(self, logs: Mapping[str, Any], kind: str) -> Logs:
        """Returns the logs with the names of `fit`, and with whole arrays.

        Keras's own steps log `model.metrics`: if a model overrides that without the loss tracker, there is no loss.
        """
        dropped = {"learning_rate", "steps_per_second", "eval_seconds", UPDATES}
        loss, step = ("training_loss", "train_step") if kind == "train" else ("validation_loss", "test_step")
        own_step = getattr(type(self.model), step) is not getattr(keras.Model, step)
        if not own_step and all(metric.name != "loss" for metric in self.model.metrics):
            dropped.add(loss)
        named = {"loss" if name == loss else name: value for name, value in logs.items() if name not in dropped}
        return with_arrays(named)

    def _call(self, hook: str, index: int, logs: Logs, own: bool) -> None:
        hooks = _TEST_HOOKS if hook in _TEST_HOOKS else _TRAIN_HOOKS
        for callback in self.list.callbacks:
            if _wants(callback, hooks) and _is_keras_own(callback, hooks) == own:
                getattr(callback, hook)(index, logs)


def _wants(callback: keras.callbacks.Callback, hooks: Sequence[str]) -> bool:
    """Whether a callback has any of these batch methods."""
    default = keras.callbacks.Callback
    return any(name in vars(callback) or getattr(type(callback), name) is not getattr(default, name) for name in hooks)


def _is_keras_own(callback: keras.callbacks.Callback, hooks: Sequence[str]) -> bool:
    """Whether the batch methods are Keras's, not the user's, and one call an epoch is enough."""
    if any(name in vars(callback) for name in hooks) or _acts_at_batches(callback):
        return False
    default = keras.callbacks.Callback
    owners = [getattr(type(callback), name) for name in hooks]
    written = [hook for hook, name in zip(owners, hooks, strict=True) if hook is not getattr(default, name)]
    return all(hook.__module__.split(".")[0] == "keras" for hook in written)


def accepted(given: Any, keeps: bool = True) -> list[keras.callbacks.Callback]:
    """Returns callbacks as a flat list.

    Args:
      given: None, a callback, a `CallbackList`, or any nesting of them.
      keeps: Whether the run has a directory to resume from.

    Raises:
      UsageError: Something in it is not a callback, or cannot work here.
    """
    flat = [callback for each in keras.tree.flatten(given) if each is not None for callback in _of(each)]
    backups = [callback for callback in flat if isinstance(callback, keras.callbacks.BackupAndRestore)]
    if backups and not keeps:
        raise UsageError(
            "BackupAndRestore: the run has no directory to resume from",
            key="callbacks",
            remedy="remove it and pass model_dir=…, a new directory, which saves more and resumes inside an epoch",
        )
    if backups:
        logger.warning(
            "BackupAndRestore is skipped: it would replace the restored weights by older ones; a run with a directory "
            "resumes by itself"
        )
    return [callback for callback in flat if callback not in backups]


def _of(each: Any) -> list[keras.callbacks.Callback]:
    if isinstance(each, keras.callbacks.CallbackList):
        return list(each.callbacks)
    if isinstance(each, keras.callbacks.Callback):
        return [each]
    name = getattr(each, "__name__", type(each).__name__)
    is_class = isinstance(each, type) and issubclass(each, keras.callbacks.Callback)
    remedy = f"write {name}(…)" if is_class else "keras.callbacks.LambdaCallback creates one from functions"
    raise UsageError("expected a keras.callbacks.Callback", key="callbacks", received=name, remedy=remedy)


def _acts_at_batches(callback: keras.callbacks.Callback) -> bool:
    """Whether a Keras callback is configured to act at batches, not only at an epoch's end."""
    counts = [getattr(callback, name, "epoch") for name in ("save_freq", "update_freq")]
    return any(count != "epoch" for count in counts) or bool(getattr(callback, "_should_trace", False))
