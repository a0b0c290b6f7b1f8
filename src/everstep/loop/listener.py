"""`Listener`: what an entry point for compiled models does while a model trains."""

from everstep.loop.hooks import Hook
from everstep.types import Logs


class Listener(Hook):
    """A hook that also sees the ends of epochs; pass it to `KerasCallbacks`, too, which calls `on_epoch_end`.

    Epochs count from 0 over all attempts. A listener with `get_state()` and `set_state(state)` is saved with the run,
    as Keras callbacks are, and restored before the first step.
    """

    def on_epoch_end(self, epoch: int, logs: Logs) -> None:
        """An epoch has ended, evaluation included; `logs` has Keras's names: `loss`, `val_loss`.

        The user's callbacks have seen it, it is in the history, and the model has its weights. It is not saved yet.
        """
