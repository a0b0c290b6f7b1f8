"""Ending a run that no longer gets better."""

import logging
from collections.abc import Mapping
from typing import Any

from everstep.errors import UsageError
from everstep.loop.actions.metrics import is_better, value_of

logger = logging.getLogger(__name__)


class EarlyStopping:
    """Ends training once so many evaluations in a row have brought nothing better; for `eval_actions`.

    The step at which it ends is saved and evaluated like any other last step. What it remembers is part of the run's
    state, so a run that was killed ends where it would have ended. A value that is not finite is not better.

    Args:
      metric: The evaluation metric, `a|b` for one inside another.
      mode: Whether a `higher` or a `lower` value is better.
      patience: After so many evaluations without a better value, training ends.
      min_delta: By how much a value has to be better than the best so far.
      key: What errors call the metric's name.

    Raises:
      UsageError: One of them cannot be used.
    """

    def __init__(
        self, metric: str, mode: str, patience: int = 3, min_delta: float = 0.0, key: str = "EarlyStopping.metric"
    ) -> None:
        if mode not in ("higher", "lower"):
            raise UsageError("expected 'higher' or 'lower'", key="EarlyStopping.mode", received=mode)
        if patience < 1 or not min_delta >= 0:
            reason = f"received patience={patience} and min_delta={min_delta}, must be at least 1 and 0"
            raise UsageError(reason, key="EarlyStopping")
        self.metric, self.mode, self.patience, self.min_delta = metric, mode, patience, min_delta
        self.best: float | None = None
        self.waited = 0
        self._key = key
        self._controller: Any = None

    def set_controller(self, controller: Any) -> None:
        """Receives the loop that it stops; `run_experiment` calls it."""
        self._controller = controller

    def __call__(self, output: Mapping[str, Any]) -> None:
        """Checks one evaluation; stops the controller when patience is at an end."""
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
        reason = f"{self.metric} has not become better in {self.waited} evaluations ({best})"
        logger.warning("training ends at step %d: %s", self._controller.step, reason)
        self._controller.stop(reason)

    def get_state(self) -> dict[str, Any]:
        """Returns what a run has to remember."""
        return {"metric": self.metric, "mode": self.mode, "best": self.best, "waited": self.waited}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continues from what `get_state` returned; starts from scratch where that is of another metric."""
        if (state["metric"], state["mode"]) == (self.metric, self.mode):
            self.best, self.waited = state["best"], state["waited"]
