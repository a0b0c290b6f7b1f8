"""`Listener`: what an entry point for compiled models does while a model trains; called by `KerasCallbacks`."""

from typing import Any

from everstep.types import Logs


class Listener:
    """Follows the training of a compiled model; subclass it and override what is needed.

    Its events are those of `Hook` with the same names; only `on_epoch_end` is its own. Epochs count from
    0 over all attempts. A listener with `get_state()` and `set_state(state)` is saved with the run, as Keras callbacks
    are, and restored before the first step.
    """

    def setup(self, controller: Any) -> None:
        """Model, optimizer and streams are built, nothing is restored or written yet.

        Args:
          controller: The loop. It has `trainer` (with `engine`, `example`, `global_step`), `checkpointer` and `step`.

        Raises:
          UsageError: The request is invalid; nothing is left behind.
        """

    def on_ready(self) -> None:
        """An attempt begins: everything is restored, and `model.history` has the epochs of earlier attempts.

        Also called where nothing is left to train.
        """

    def on_call_end(self, step: int) -> None:
        """A call of the engine has ended, with `step` steps done; cheap work only."""

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """An epoch has ended, evaluation included; `logs` has Keras's names: `loss`, `val_loss`.

        The user's callbacks have seen it, it is in the history, and the model has its weights. It is not saved yet.
        """

    def on_exit(self, error: BaseException | None) -> None:
        """Training has ended, and its last state is saved; or it has failed or was interrupted, and raises `error`."""
