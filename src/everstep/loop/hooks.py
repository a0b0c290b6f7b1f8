"""`Hook`: an object that takes part in training, event by event.

The controller calls each event on all hooks, in the order of its list:

| event | when | used by |
|---|---|---|
| `setup` | the controller is created | all; actions and callbacks get the controller here |
| `on_restore` | the variables of a checkpoint are restored, or there is none | KerasCallbacks, `--fast-dev-run` |
| `on_train_begin` | training begins; the state of hooks is restored after it | KerasCallbacks |
| `on_ready` | everything is restored, the first step is next | Profile, KerasCallbacks, StopAt |
| `on_window_begin` | before the first step of a window, or of the rest of one | KerasCallbacks, PruningGate, … |
| `on_call_end` | after each compiled call | Progress, KerasCallbacks, Profile, … |
| `on_batches_counted` | the first pass over data of unknown length has ended | KerasCallbacks |
| `on_window_end` | a window is logged and checked | Actions, KerasCallbacks, `--fast-dev-run` |
| `on_last_step` | after the last training step, before the final evaluation | Attempt |
| `on_evaluation_begin` | before an evaluation | KerasCallbacks, `--fast-dev-run` |
| `on_evaluation_batch_begin`, `_end` | around each batch of it, if `watches_evaluation_batches` | KerasCallbacks |
| `on_evaluation_end` | after an evaluation, before it is tracked | Actions, KerasCallbacks, PruningGate, … |
| `on_save` | a checkpoint is being written | `--fast-dev-run` |
| `on_rollback` | training was rolled back | Progress |
| `on_exit` | last, whether training is done or has failed | Profile, KerasCallbacks, `--fast-dev-run` |
| `state`, `check`, `restore` | with every save, and with every restore | those with a `name` |

Their users:

| user | file |
|---|---|
| `Actions`: functions of the logs | `loop/action_hook.py` |
| `ConfiguredActions`: the state of configured ones | `loop/actions/from_config.py` |
| `KerasCallbacks` | `loop/keras_callbacks.py` |
| `Listener`, of entry points for compiled models: also sees epochs end | `loop/listener.py` |
| `LearningRate` | this file |
| `StopAt` | `loop/stop_at.py` |
| `Attempt`, `Progress` | `run/attempt.py` |
| `Profile` | `run/profiling.py` |
| `PruningGate`, of the trials of a sweep | `run/pruning.py` |
| `LiveFacts`: `setup` only | `run/trackers.py` |
| `--fast-dev-run` | `fast_dev_run.py` |

Everything that takes part in the loop is a hook; actions and Keras callbacks are called by one. Use an action for what
only needs the logs of a window or an evaluation: it is a plain callable. Use a hook for other events, or for what has
to know the loop. Use a Keras callback with a compiled model (`fit` and the other entry points that take `callbacks`),
if it exists already or has to run in `model.fit`, too; it sees epochs and batches.

A hook reads or changes the Keras objects inside `with self.controller.synced():`. What it must remember over attempts
is its state; a hook without a `name` has none.
"""

from collections.abc import Mapping
from typing import Any

from everstep.types import State


class StatePart:
    """A part of a run's state beside the variables: hooks, and the random generators.

    Attributes:
      name: Its name in a checkpoint's meta; its arrays have keys `<name>/…`, and no variable's key begins so. Empty for
        a hook without state.
    """

    name = ""

    def state(self) -> tuple[State, Any]:
        """Returns arrays by key, and plain JSON values; neither changes when training continues."""
        return {}, {}

    def check(self, meta: Any) -> None:
        """Checks the saved values when a checkpoint is read, before anything is restored.

        Raises:
          UsageError: They do not fit.
        """

    def restore(self, arrays: State, meta: Any) -> None:
        """Restores what `state` returned: before the first step, and after a rollback."""


class Hook(StatePart):
    """Base class of hooks: override the events you need; with a `name`, also `state` and `restore`.

        class PrintLoss(Hook):
            def on_window_end(self, step, logs):
                print(step, logs["training_loss"])

        everstep.run_experiment(task, params, "runs/demo", hooks=[PrintLoss()])

    Attributes:
      controller: The loop, from `setup` on: its step, trainer, checkpointer, `synced()`, `stop(reason)`
        and `request_stop(reason)`.
      watches_evaluation_batches: Whether evaluations run batch by batch, with `on_evaluation_batch_begin` and `_end`.
      sees_divergence: Whether a window in which training diverged is acted on and evaluated before training fails;
        nothing of it is saved.
    """

    watches_evaluation_batches = False
    sees_divergence = False
    controller: Any  # a Controller, which imports this module

    @property
    def acts(self) -> bool:
        """Whether it may read or change the state at the end of a window: the loop checks the window before."""
        return type(self).on_window_end is not Hook.on_window_end

    @property
    def restored_step(self) -> int | None:
        """The earlier step whose weights it has restored at the end of training; None if it has restored none."""
        return None

    def setup(self, controller: Any) -> None:
        """Called once, when the controller is created."""
        self.controller = controller

    def on_restore(self, step: int | None) -> None:
        """After the variables of a checkpoint were restored; `step` is None if there was no checkpoint."""

    def on_train_begin(self) -> None:
        """Before training, and before the state of hooks is restored: a restore overwrites what is reset here."""

    def on_ready(self) -> None:
        """Before the first step, when everything is restored."""

    def on_window_begin(self, step: int) -> None:
        """Before the first step of a window, or the first one after a resume inside it."""

    def on_call_end(self, step: int) -> None:
        """After each compiled call; `controller.stop(reason)` ends the window here."""

    def on_batches_counted(self, step: int) -> None:
        """After the first pass over data of unknown length, which counts the batches; the window ends here."""

    def on_window_end(self, step: int, logs: Mapping[str, Any]) -> None:
        """After a window was logged and checked; reading the logs waits for the device."""

    def on_last_step(self, step: int) -> None:
        """After the last training step, before the final evaluation."""

    def on_evaluation_begin(self, step: int, num_steps: int) -> None:
        """Before an evaluation of `num_steps` batches, -1 for all."""

    def on_evaluation_batch_begin(self, done: int) -> None:
        """Before a batch, when `done` are evaluated."""

    def on_evaluation_batch_end(self, done: int) -> bool:
        """After a batch, when `done` are evaluated; False ends the evaluation here."""
        return True

    def on_evaluation_end(self, step: int, logs: dict[str, Any]) -> None:
        """After an evaluation, before its logs are tracked; may add to them."""

    def on_save(self, step: int) -> None:
        """After a checkpoint was handed over to be written; `controller.checkpointer.wait()` waits for it."""

    def on_rollback(self, steps: int) -> None:
        """After training was rolled back by so many steps."""

    def on_exit(self, error: BaseException | None) -> None:
        """Last of all, when training is done (`error` is None), or has failed with `error`.

        A `DivergedError` means that training has diverged and was not rolled back, because no trials are left.
        """


class LearningRate(Hook):
    """Applies a constant learning rate that was changed between two attempts.

    The current rate, which callbacks may have lowered, is a variable that a checkpoint restores. That would silently
    undo a changed setting. So a checkpoint also holds the rate that the optimizer was created with: if that differs
    now, the new one is used.

    Args:
      rate: The rate that the optimizer was created with; None for a schedule, which is not a variable. A list for an
        optimizer that consists of several.
    """

    name = "learning_rate"

    def __init__(self, rate: Any) -> None:
        self._rate = rate

    def state(self) -> tuple[State, dict[str, Any]]:
        """Returns no arrays, and the rate."""
        return {}, {"rate": self._rate} if self._rate is not None else {}

    def restore(self, arrays: State, meta: dict[str, Any]) -> None:
        """Sets the rate, if the checkpoint was saved with a different one."""
        former = meta.get("rate", meta.get("told"))  # the second is the key of older versions
        if None in (self._rate, former) or former == self._rate:
            return
        trainer = self.controller.trainer
        trainer.push()
        _set_rate(trainer.optimizer, self._rate, former)
        trainer.pull()


def _set_rate(optimizer: Any, rate: Any, before: Any) -> None:
    """Sets a learning rate that has changed; of an optimizer that consists of several, the rates that have."""
    if isinstance(rate, list):
        for part, own, former in zip(optimizer.optimizers, rate, before, strict=False):
            _set_rate(part, own, former)
    elif None not in (rate, before) and rate != before:
        optimizer.learning_rate = rate
