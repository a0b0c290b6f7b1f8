"""What is done when training goes wrong: a loss that is not finite or too high, a state that is not finite.

Nothing of the kind is ever saved. With `max_trials` 0 training stops; with n > 0 it goes back to the last good state
and tries again, step by step, leaving out the batches that do the harm; with -1 it trains on without saving.
"""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from everstep.errors import TrainingError
from everstep.types import State

logger = logging.getLogger(__name__)

_PIECE = 1 << 20  # of an array, looked at in one go: what that takes stays in the processor's cache


@dataclasses.dataclass
class Recovery:
    """Judges logs and states, and keeps count.

    Attributes:
      upper_bound: A mean loss above it is as bad as one that is not finite.
      begin_steps: The step from which on the bound counts.
      max_trials: How often to go back; 0 stops at once, -1 never does.
      watched: Which of the logs is looked at; the loss, unless steps return none.
      alarm: What was found and not dealt with yet.
      trials: How often training went back, or left out a further batch, over all attempts.
      skipped: The batches that were left out, over all attempts.
    """

    upper_bound: float = math.inf
    begin_steps: int = 0
    max_trials: int = -1
    alarm: str = ""
    trials: int = 0
    skipped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    watched: str = "training_loss"
    _infinite_from_the_start: frozenset[str] | None = None

    def judge(self, step: int, logs: Mapping[str, float]) -> str:
        """Returns what is wrong with the logs of a window that ends at `step`; empty if nothing is."""
        loss = float(logs.get(self.watched, 0.0))
        name = "the training loss" if self.watched == "training_loss" else self.watched
        if not math.isfinite(loss):
            return f"{name} is {loss} at step {step}"
        if step >= self.begin_steps and loss > self.upper_bound:
            return f"{name} is {loss:.6g} at step {step}, above trainer.loss_upper_bound={self.upper_bound:g}"
        return ""

    def judge_state(self, step: int, state: State) -> str:
        """Returns what in a state is not finite; empty if all is. What was so from the start is meant to be."""
        infinite = non_finite(state)
        if self._infinite_from_the_start is None:
            self._infinite_from_the_start = frozenset(infinite) if step == 0 else frozenset()
        new = [key for key in infinite if key not in self._infinite_from_the_start]
        more = f" and {len(new) - 1} more" if len(new) > 1 else ""
        return f"{new[0]}{more} is not finite after step {step}" if new else ""

    def watch(self, step: int, logs: Mapping[str, float]) -> None:
        """Raises the alarm if a window's logs are bad; says so, once, where training goes on all the same."""
        if self.alarm:
            return
        self.alarm = self.judge(step, logs)
        if self.alarm and self.max_trials < 0:
            logger.warning(
                "%s: training continues, but nothing of it is worth keeping: look for NaN or infinity in the data, or "
                "lower the learning rate",
                self.alarm,
            )

    def watch_state(self, step: int, state: State) -> None:
        """Raises the alarm if a state is not finite."""
        self.alarm = self.alarm or self.judge_state(step, state)

    def try_again(self, good: int | None) -> None:
        """Counts a return to the last good state.

        Args:
          good: Its step; None if there is none.

        Raises:
          TrainingError: There are no trials left.
        """
        reason, self.alarm = self.alarm, ""
        if good is None or self.trials >= self.max_trials:
            raise TrainingError(f"{reason}; {self._remedy(good)}")
        self.trials += 1
        logger.warning("%s: going back to step %d (trial %d of %d)", reason, good, self.trials, self.max_trials)

    def leave_out(self, step: int, position: Mapping[str, Any], reason: str, further: bool) -> None:
        """Notes a batch that is left out; each further one of a trial counts as one.

        Raises:
          TrainingError: There are no trials left.
        """
        if self.trials + further > self.max_trials:
            raise TrainingError(f"{reason}; {self._remedy(None)}")
        self.trials += further
        batch = {"step": step, "epoch": position.get("epoch"), "batch": position.get("batch")}
        self.skipped.append(batch)
        logger.warning("%s: leaving out batch %s of epoch %s", reason, batch["batch"], batch["epoch"])

    def state(self, careful_until: int = 0) -> dict[str, Any]:
        """Returns what a checkpoint has to remember; up to which step care is taken, among others."""
        return {
            "trials": self.trials,
            "careful_until": careful_until,
            "skipped": list(self.skipped),
            "infinite": sorted(self._infinite_from_the_start or ()),
        }

    def restore(self, state: Mapping[str, Any]) -> int:
        """Continues from what `state` returned; trials used up since then stay used up.

        Returns:
          The step up to which care is to be taken; 0 for none.
        """
        self.trials = max(self.trials, int(state.get("trials", 0)))
        self.skipped = list(state.get("skipped", []))
        self._infinite_from_the_start = frozenset(state.get("infinite", ()))
        return int(state.get("careful_until", 0))

    def _remedy(self, good: int | None) -> str:
        tried = f"after {self.trials} trial{'s' if self.trials > 1 else ''}, " if self.trials else ""
        left_out = f" (left out so far: {_listed(self.skipped)})" if self.skipped else ""
        last = f"the checkpoint of step {good} is the last good one" if good is not None else "nothing bad was saved"
        advice = "look at the data and the learning rate, or set trainer.recovery_max_trials to leave out batches"
        return f"{tried}{last}{left_out}; {advice}"


def non_finite(state: State) -> list[str]:
    """Returns the keys of the arrays that hold NaN or an infinity."""
    return [key for key, array in state.items() if not _is_finite(np.asarray(array))]


def _is_finite(array: np.ndarray) -> bool:
    if array.dtype.kind in "biuUS" or array.size == 0:
        return True
    flat = array.reshape(-1)
    return all(np.isfinite(flat[begin : begin + _PIECE]).all() for begin in range(0, flat.size, _PIECE))


def _listed(skipped: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"batch {batch['batch']} of epoch {batch['epoch']}" for batch in skipped)
