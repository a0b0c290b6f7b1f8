"""Evaluating what another process trains: each new checkpoint, until that one is done or dead."""

import logging
import time
from collections.abc import Callable
from typing import Any

from everstep.errors import TrainingError, UsageError
from everstep.types import Logs

logger = logging.getLogger(__name__)


def follow(controller: Any, steps: int, timeout: float | None, timeout_fn: Callable[[], bool], poll: float) -> Logs:
    """Evaluates the newest checkpoint each time one appears; see `Controller.evaluate_continuously`.

    Raises:
      TrainingError: No checkpoint appeared at all.
    """
    seen, since = None, time.monotonic()
    while timeout is None or time.monotonic() - since < timeout:
        newest = controller.checkpointer.latest()
        if newest is None or newest == seen:
            time.sleep(poll)
            continue
        try:
            controller.restore_checkpoint(newest)
        except (UsageError, FileNotFoundError):
            if newest in controller.checkpointer.steps():
                raise
            continue  # the trainer has pruned it meanwhile; there is a newer one
        controller.evaluate(steps)
        controller.tracker.flush()
        seen, since = newest, time.monotonic()
        if timeout_fn():
            return dict(controller.last_evaluation)
    if seen is None:
        raise TrainingError(f"no checkpoint appeared within {timeout} seconds: is the trainer running?")
    logger.warning("no new checkpoint for %s seconds after step %d: giving up on the trainer", timeout, controller.step)
    return dict(controller.last_evaluation)
