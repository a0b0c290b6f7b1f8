"""Steps that leave the weights as they are, because the gradients of the scaled loss are not finite.

One of them now and then is how a scale is found; a window of nothing else is a run that does not learn, and whose loss
may look as usual. That is said once.
"""

import logging
from typing import Any

import keras

from everstep.optim.loss_scale import UPDATES, find_scaling
from everstep.types import Logs

logger = logging.getLogger(__name__)


class SkippedSteps:
    """Watches the logs of whole windows.

    Args:
      optimizer: The optimizer, as it is after `step`; one that does not scale the loss leaves out nothing.
      step: Steps done so far.
    """

    def __init__(self, optimizer: Any, step: int = 0) -> None:
        self._step, self._updates = step, 0.0
        self._per_update = 1
        if (scaling := find_scaling(optimizer)) is not None:
            self._updates = float(keras.ops.convert_to_numpy(optimizer.iterations))
            self._per_update = _steps_per_update(scaling)
        self._told = False

    def watch(self, step: int, logs: Logs) -> None:
        """Looks at the logs of a window that ends at `step`, when somebody reads them anyway."""
        updates = logs.get(UPDATES)
        if updates is None or self._told:
            return
        if updates != self._updates:
            self._step, self._updates = step, updates
        elif step - self._step >= self._per_update:
            self._told = True
            logger.warning(
                "steps %d to %d changed no weights: the gradients of their scaled losses are not finite; if that goes "
                "on, lower runtime.loss_scale or set it to dynamic, and look at the data and the learning rate",
                self._step + 1,
                step,
            )


def _steps_per_update(optimizer: Any) -> int:
    """Returns how many steps' gradients the innermost optimizer collects before it moves the weights."""
    while (inner := getattr(optimizer, "inner_optimizer", None)) is not None:
        optimizer = inner
    return int(optimizer.gradient_accumulation_steps or 1)
