"""`EarlyStopping`: stops a run that no longer improves."""

import logging
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.loop.actions.metrics import is_better, value_of

logger = logging.getLogger(__name__)


class EarlyStopping:
    """Stops training after a number of evaluations in a row without improvement; for `eval_actions`.

    The last step is saved and evaluated like any other last step. Its state is part of the run's state, so a run that
    was killed stops where it would have stopped. A value that is not finite is no improvement.

    Args:
      metric: The evaluation metric, `a|b` for a nested one.
      mode: Whether a `higher` or a `lower` value is better.
      patience: The number of evaluations without improvement after which training stops.
      min_delta: The minimum difference to the best value that counts as an improvement.
      key: The key of the metric in errors.

    Raises:
      UsageError: One of them is invalid.
    """

    def __init__(
        self, metric: str, mode: str, patience: int = 3, min_delta: float = 0.0, key: str = "EarlyStopping.metric"
    ) -> None:
        if mode not in ("higher", "lower"):
            raise UsageError("expected 'higher' or 'lower'", key="EarlyStopping.mode", received=mode)
        if patience < 1:
            raise UsageError("must be at least 1", key="EarlyStopping.patience", received=patience)
        if not min_delta >= 0:
            raise UsageError("must be at least 0", key="EarlyStopping.min_delta", received=min_delta)
        self.metric, self.mode, self.patience, self.min_delta = metric, mode, patience, min_delta
        self.best: float | None = None
        self.waited = 0
        self._key = key
        self._controller: Any = None

    def set_controller(self, controller: Any) -> None:
        """Called by `run_experiment` with the loop to stop."""
        self._controller = controller

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Checks one evaluation; stops the controller when the patience is exhausted."""
        value = value_of(output, self.metric, self._key)
        if is_better(value, self.best, self.mode == "higher", self.min_delta):
            self.best, self.waited = value, 0
            return
        self.waited += 1
        if self.waited >= self.patience:
            self._stop()

    def _stop(self) -> None:
        if self._controller is None:
            raise UsageError(
                "has no controller to stop", key="EarlyStopping", remedy="call its set_controller(controller)"
            )
        best = "no finite value yet" if self.best is None else f"best: {self.best:.6g}"
        reason = f"{self.metric} has not improved in {self.waited} evaluations ({best})"
        logger.warning("training stops at step %d: %s", self._controller.step, reason)
        self._controller.stop(reason)

    def get_state(self) -> dict[str, Any]:
        """Returns the metric, its best value, and the evaluations since then."""
        return {"metric": self.metric, "mode": self.mode, "best": self.best, "waited": self.waited}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restores what `get_state` returned; starts from scratch if that is of another metric."""
        if (state["metric"], state["mode"]) == (self.metric, self.mode):
            self.best, self.waited = state["best"], state["waited"]
