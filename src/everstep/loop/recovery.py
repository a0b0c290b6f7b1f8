"""Recovery from divergence: a loss that is not finite or too high, a state that is not finite.

A diverged state is never saved. With `max_trials` 0 training fails; with n > 0 it is rolled back to the last good state
and repeated, step by step, skipping the batches that cause the divergence; with -1 it continues without saving.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras

from everstep.engine import Engine, Feed
from everstep.errors import DivergedError, warning_text
from everstep.task.optim import UPDATES, find_scaling
from everstep.types import Logs

logger = logging.getLogger(__name__)

_ADVICE: dict[str, Any] = {
    "remedy": ("check the data and the learning rate", "set {trials} to skip batches"),
    "mentions": {"trials": "trainer.recovery_max_trials"},
}


@dataclasses.dataclass
class Recovery:
    """Checks logs and states, and counts trials.

    Attributes:
      upper_bound: A mean loss above it counts as divergence.
      begin_steps: The first step at which the bound applies.
      max_trials: How often to roll back; 0 fails at once, -1 never fails.
      watched: The name of the checked log: the loss, unless steps return none.
      alarm: The divergence that was found and is not handled yet; empty if there is none.
      trials: How often training was rolled back, or a further batch skipped, over all attempts.
      skipped: The batches that were skipped, over all attempts.
    """

    upper_bound: float = math.inf
    begin_steps: int = 0
    max_trials: int = -1
    alarm: str = ""
    trials: int = 0
    skipped: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    watched: str = "training_loss"
    _infinite_from_the_start: frozenset[str] | None = None

    @property
    def handles_divergence(self) -> bool:
        """Whether training that diverges is rolled back or fails; otherwise it continues."""
        return self.max_trials >= 0

    @property
    def rolls_back(self) -> bool:
        """Whether training may be rolled back, so that there must be a state to roll back to."""
        return self.max_trials > 0

    @property
    def has_diverged(self) -> bool:
        """Whether training has diverged and must not go on: it is rolled back, or fails."""
        return self.handles_divergence and bool(self.alarm)

    def problem_in_logs(self, step: int, logs: Mapping[str, float]) -> str:
        """Returns what is wrong with the logs of a window that ends at `step`; empty if nothing is."""
        loss = float(logs.get(self.watched, 0.0))
        name = "the training loss" if self.watched == "training_loss" else self.watched
        if not math.isfinite(loss):
            return f"{name} is {loss} at step {step}"
        if step >= self.begin_steps and loss > self.upper_bound:
            return f"{name} is {loss:.6g} at step {step}, above trainer.loss_upper_bound={self.upper_bound:g}"
        return ""

    def problem_in_state(self, step: int, non_finite: Sequence[str]) -> str:
        """Returns what in a state is not finite, and was finite when training began; empty if nothing is.

        Metrics may be NaN, such as a correlation with a constant: the next window resets them.

        Args:
          step: The step of the state.
          non_finite: The keys of the variables that hold NaN or an infinity.
        """
        known = self._infinite_from_the_start or frozenset()
        new = [key for key in non_finite if key not in known and not key.startswith("metrics.")]
        more = f" and {len(new) - 1} more" if len(new) > 1 else ""
        return f"{new[0]}{more} is not finite after step {step}" if new else ""

    def remember_initial_infinities(self, non_finite: Sequence[str]) -> None:
        """Accepts what is not finite in the state before the first step: it is intended. Later calls do nothing."""
        if self._infinite_from_the_start is None:
            self._infinite_from_the_start = frozenset(non_finite)

    def watch(self, step: int, logs: Mapping[str, float]) -> None:
        """Sets the alarm if a window's logs are bad; warns once, if training continues nevertheless."""
        if self.alarm:
            return
        self.alarm = self.problem_in_logs(step, logs)
        if self.alarm and not self.handles_divergence:
            logger.warning(
                "%s: training continues, but its results are useless: check the data for NaN and infinity, or lower "
                "the learning rate",
                self.alarm,
            )

    def watch_state(self, step: int, non_finite: Sequence[str]) -> None:
        """Sets the alarm if a state is not finite."""
        if self.alarm:
            return
        if step == 0:
            self.remember_initial_infinities(non_finite)
        self.alarm = self.problem_in_state(step, non_finite)

    def count_rollback(self, good: int | None) -> None:
        """Counts a rollback to the last good state as a trial, and clears the alarm; the controller rolls back.

        Args:
          good: The step of the last good state; None if there is none.

        Raises:
          DivergedError: There are no trials left.
        """
        reason, self.alarm = self.alarm, ""
        if good is None or self.trials >= self.max_trials:
            raise DivergedError(f"{reason}; {self._so_far(good)}", **_ADVICE)
        self.trials += 1
        logger.warning("%s: rolling back to step %d (trial %d of %d)", reason, good, self.trials, self.max_trials)

    def record_skipped(self, step: int, position: Mapping[str, Any], reason: str, further: bool) -> None:
        """Records a batch that `BadBatchSkipper` skips; each further batch of a trial counts as another trial.

        Args:
          step: The step that it was taken for.
          position: The position after it: the one before may be at the end of the epoch before.
          reason: What is wrong with it.
          further: Whether another batch of the same trial was skipped before.

        Raises:
          DivergedError: There are no trials left.
        """
        if self.trials + further > self.max_trials:
            raise DivergedError(f"{reason}; {self._so_far(None)}", **_ADVICE)
        self.trials += further
        following = position.get("batch")
        number = None if following is None else following - 1
        batch = {"step": step, "epoch": position.get("epoch"), "batch": number}
        self.skipped.append(batch)
        logger.warning("%s: skipping batch %s of epoch %s", reason, batch["batch"], batch["epoch"])

    def state(self, skip_until: int = 0) -> dict[str, Any]:
        """Returns what a checkpoint holds; `skip_until` is the step up to which bad batches are skipped."""
        return {
            "trials": self.trials,
            "skips_bad_batches_until": skip_until,
            "skipped": list(self.skipped),
            "infinite": sorted(self._infinite_from_the_start or ()),
        }

    def restore(self, state: Mapping[str, Any]) -> int:
        """Restores what `state` returned; trials used since then stay used.

        Returns:
          The step up to which bad batches are skipped; 0 for none.
        """
        self.trials = max(self.trials, int(state.get("trials", 0)))
        self.skipped = list(state.get("skipped", []))
        self._infinite_from_the_start = frozenset(state.get("infinite", ()))
        return int(state.get("skips_bad_batches_until", state.get("careful_until", 0)))  # or of an older version

    def _so_far(self, good: int | None) -> str:
        """Describes the trials so far, and the last good checkpoint."""
        tried = f"after {self.trials} trial{'s' if self.trials > 1 else ''}, " if self.trials else ""
        batches = ", ".join(f"batch {batch['batch']} of epoch {batch['epoch']}" for batch in self.skipped)
        kept = f"the checkpoint of step {good} is the last good one" if good is not None else "nothing bad was saved"
        return f"{tried}{kept}{f' (skipped so far: {batches})' if batches else ''}"


class BadBatchSkipper:
    """Trains single steps, each checked before the next; a batch that makes the loss or the state bad is skipped.

    Args:
      recovery: Checks logs and states, and counts the skipped batches.
      until: The step up to which steps are checked.
    """

    def __init__(self, recovery: Recovery, until: int) -> None:
        self._recovery, self.until = recovery, until
        self._skipped = 0

    def steps(
        self, engine: Engine, feed: Feed, n: int, begin: int, logs: Callable[[], Mapping[str, float]]
    ) -> Iterator[int]:
        """Trains up to `n` good steps, no further than `until`, and no further than the data.

        Args:
          engine: Runs the steps; each stage of a progressive run has its own.
          feed: The source of batches.
          n: The number of good steps.
          begin: The number of steps done before.
          logs: Returns the logs of the open window.

        Yields:
          After each good step, the number of steps done in all.
        """
        done = 0
        while done < n and begin + done < self.until:
            before = engine.state()
            if not engine.run(feed, 1):
                break
            step = begin + done + 1
            reason = self._recovery.problem_in_logs(step, logs())
            reason = reason or self._recovery.problem_in_state(step, engine.non_finite())
            if reason:
                engine.load(before)
                self._recovery.record_skipped(step, feed.state(), reason, further=self._skipped > 0)
                self._skipped += 1
                continue
            done += 1
            yield step


class SkippedUpdates:
    """Warns, once, of windows whose steps changed no weights, because the gradients of the scaled loss are not finite.

    Some such steps are normal while the scale adapts. If a whole window consists of them, the run does not learn,
    though its loss may look normal.

    Args:
      optimizer: The optimizer, as it is after `step`; one that does not scale the loss skips no updates.
      step: Steps done so far.
    """

    def __init__(self, optimizer: Any, step: int = 0) -> None:
        self._step, self._updates = step, 0.0
        self._per_update, self._warned = 1, False
        if (scaling := find_scaling(optimizer)) is not None:
            self._updates = float(keras.ops.convert_to_numpy(optimizer.iterations))
            while (inner := getattr(scaling, "inner_optimizer", None)) is not None:
                scaling = inner
            self._per_update = int(scaling.gradient_accumulation_steps or 1)

    def watch(self, step: int, logs: Logs) -> None:
        """Checks the logs of a window that ends at `step`, when they are read anyway."""
        updates = logs.get(UPDATES)
        if updates is None or self._warned:
            return
        if updates != self._updates:
            self._step, self._updates = step, updates
        elif step - self._step >= self._per_update:
            self._warned = True
            text = warning_text(
                f"steps {self._step + 1} to {step} changed no weights: the gradients of their scaled losses are "
                "not finite; if that continues",
                remedy=("check the data and the learning rate", "lower {scale}, or set it to dynamic"),
                mentions={"scale": "runtime.loss_scale"},
            )
            logger.warning("%s", text)
