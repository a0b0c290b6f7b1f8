"""`verbose=2`: one line per epoch, for logs."""

import contextlib
import sys
import time
from collections.abc import Mapping
from typing import Any

from everstep.tracking.tracker import plain


class EpochLines:
    """Prints a line when told of an epoch's end.

        Epoch 3/5 - 0.4s - loss: 0.41872 - accuracy: 0.8125 - val_loss: 0.45133 - val_accuracy: 0.75

    Args:
      epochs: How many there are.
    """

    def __init__(self, epochs: int) -> None:
        self._epochs, self._since = epochs, time.perf_counter()

    def __call__(self, epoch: int, logs: Mapping[str, Any]) -> None:
        """Prints what `on_epoch_end` was told."""
        now = time.perf_counter()
        parts = [f"Epoch {epoch + 1}/{self._epochs}", f"{now - self._since:.1f}s"]
        parts += [f"{name}: {value:.5g}" for name, value in plain(logs).items()]
        self._since = now
        with contextlib.suppress(OSError, ValueError):  # nobody reads it any more: no reason to stop
            print(" - ".join(parts), file=sys.stderr, flush=True)
