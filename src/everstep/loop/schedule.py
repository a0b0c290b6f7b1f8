"""Schedules: where windows end, and what is due there. Both depend on the absolute step alone.

A save, a signal or a resume never opens or closes a window. So an interrupted run logs the same numbers at the same
steps as an uninterrupted one.
"""

import abc
import math
import warnings
from collections.abc import Callable
from typing import Any

from everstep.errors import UsageError
from everstep.loop.config import TrainerConfig, in_few_digits

UNKNOWN_END = 2**40
"""The end of an epoch of unknown length: more steps than any run has."""


class Schedule(abc.ABC):
    """Answers the controller's questions about windows, evaluations and saves. The first step has index 0.

    Attributes:
      counts_batches: Whether the first pass over the data has to count the batches.
    """

    counts_batches = False

    @abc.abstractmethod
    def target(self, steps: int | None) -> int:
        """Returns the step at which training ends, `steps` at most."""

    @abc.abstractmethod
    def window_end(self, step: int) -> int:
        """Returns the end of the window that the step with index `step` belongs to."""

    @abc.abstractmethod
    def is_window_end(self, step: int) -> bool:
        """Whether a window ends after `step` steps, so that the next step opens another."""

    @abc.abstractmethod
    def evaluation_due(self, step: int, ending: bool) -> bool:
        """Whether to evaluate after `step` steps; `ending` tells that training ends there."""

    def save_due(self, step: int, last_saved: int, interval: int) -> bool:
        """Whether a multiple of the interval was passed since the last save."""
        return bool(interval) and step // interval > last_saved // interval

    def set_batches(self, batches: int | None) -> bool:
        """Sets the number of batches of a pass, once they are counted; returns whether it was unknown until now."""
        return False

    def last_step(self, steps: int | None) -> int | None:
        """Returns the step at which training ends, `steps` at most; None while that is unknown."""
        return None if steps is None else self.target(steps)

    @abc.abstractmethod
    def require_reachable(self, step: int, steps: int | None) -> None:
        """Refuses a target that a restored run has passed already: training cannot be undone.

        Args:
          step: The step of the run.
          steps: The steps to train in all.

        Raises:
          UsageError: The run is beyond the target.
        """

    # What a run says of its schedule.

    @property
    def total_epochs(self) -> int | None:
        """How many epochs there are in all; None where the run does not count epochs."""
        return None

    @property
    def epoch_steps(self) -> int | None:
        """Steps of every epoch; None where epochs are not counted, differ in length, or that is unknown."""
        return None

    def epoch_number(self, step: int) -> int | None:
        """Returns the epoch, counted from 1, that the last of `step` steps belongs to; None if epochs do not count."""
        return None

    def epochs_done(self, step: int) -> float | None:
        """Returns the epochs done after `step` steps, with the fraction of the current one; None if unknown."""
        return None

    def trained(self, step: int) -> str:
        """Returns what a resumed run says of its epochs; empty where they are not counted."""
        return ""

    def position(self, step: int) -> str:
        """Returns what a line of the console says of a step; empty for its number."""
        return ""

    def reached(self, step: int, end: int) -> str:
        """Returns how far a run is that has nothing left to train."""
        return f"is at step {step} of {end}"

    def plan(self, step: int, end: int, config: TrainerConfig, evaluations: str) -> str:
        """Returns what is going to happen between two steps.

        Args:
          step: The first step.
          end: The step at which training ends.
          config: The trainer's section, in steps.
          evaluations: When evaluations run: `at intervals`, `at the end` or `never`.
        """
        when = {"at intervals": f", evaluate every {config.validation_interval}", "at the end": ", evaluate at the end"}
        return (
            f"steps {step} to {end}, log every {config.steps_per_loop}"
            f"{when.get(evaluations, '')}, save every {config.checkpoint_interval or 'end of training'}"
        )


class StepSchedule(Schedule):
    """Windows of `steps_per_loop` steps; evaluations at multiples of an interval, and at the end.

    Where the steps were converted from whole epochs, the run is told in epochs, as one of `EpochSchedule` is.

    Args:
      steps_per_loop: The length of a window, or a function of the step at which it begins.
      eval_interval: Windows also end at multiples of it, where evaluations are, and restart there. None: no cuts.
      epochs: The number of epochs that the steps were converted from; None if they were set as steps.
      batches: Batches of an epoch.
    """

    def __init__(
        self,
        steps_per_loop: int | Callable[[int], int],
        eval_interval: int | None = None,
        epochs: float | None = None,
        batches: int | None = None,
    ) -> None:
        self._length = steps_per_loop if callable(steps_per_loop) else lambda step: steps_per_loop
        self._constant = None if callable(steps_per_loop) else steps_per_loop
        self._interval, self._epochs, self._batches = eval_interval, epochs, batches

    def target(self, steps: int | None) -> int:
        """Returns `steps`."""
        return UNKNOWN_END if steps is None else steps

    def window_end(self, step: int) -> int:
        """Returns the end of the window that a step belongs to."""
        begin = step - step % self._interval if self._interval else 0
        if self._constant:
            begin += (step - begin) // self._constant * self._constant
        while True:
            end = begin + max(1, self._length(begin))
            if self._interval:
                end = min(end, begin - begin % self._interval + self._interval)
            if end > step:
                return end
            begin = end

    def is_window_end(self, step: int) -> bool:
        """Whether a window ends after `step` steps."""
        return step == 0 or self.window_end(step - 1) == step

    def evaluation_due(self, step: int, ending: bool) -> bool:
        """Whether `step` is a multiple of the interval, or the end."""
        return ending or bool(self._interval and step % self._interval == 0)

    @property
    def total_epochs(self) -> int | None:
        """How many epochs there are in all; None where the length was set in steps, or in a part of an epoch."""
        return int(self._epochs) if self._batches and self._epochs and self._epochs == int(self._epochs) else None

    @property
    def epoch_steps(self) -> int | None:
        """Steps of every epoch; None where the run does not count epochs."""
        return self._batches if self.total_epochs else None

    def epoch_number(self, step: int) -> int | None:
        """Returns the epoch that ends after `step` steps; None within an epoch, or if epochs do not count."""
        return step // self.epoch_steps if self.epoch_steps and step % self.epoch_steps == 0 else None

    def epochs_done(self, step: int) -> float | None:
        """Returns the epochs done after `step` steps; None if epochs do not count."""
        return step / self.epoch_steps if self.epoch_steps else None

    def trained(self, step: int) -> str:
        """Returns how many epochs a resumed run has done, or the one it is in; empty where they are not counted."""
        if self.epoch_steps is None:
            return ""
        done, begun = divmod(step, self.epoch_steps)
        return f"in epoch {done + 1}" if begun else epochs_done_text(done)

    def position(self, step: int) -> str:
        """Returns the epochs done, such as `epoch: 1.5/3`; empty where they are not counted."""
        if self.epoch_steps is None:
            return ""
        lengths = (self._constant or 1, self._interval or self.epoch_steps)
        decimals = 3 if any(length % self.epoch_steps for length in lengths) else 0  # a column of one width
        text = f"{round(step / self.epoch_steps, 2):g}"
        return f"epoch: {text:>{len(str(self.total_epochs)) + decimals}}/{self.total_epochs}"

    def reached(self, step: int, end: int) -> str:
        """Returns how far a run is that has nothing left to train."""
        done = self.epochs_done(step)
        return super().reached(step, end) if done is None else f"has done {_epochs(in_few_digits(round(done, 2)))}"

    def plan(self, step: int, end: int, config: TrainerConfig, evaluations: str) -> str:
        """Returns what is going to happen between two steps, in epochs where the run counts them."""
        if not self.epoch_steps or not self.total_epochs:
            return super().plan(step, end, config, evaluations)
        when = {"at intervals": f", evaluate {self._every(config.validation_interval)}"}
        when["at the end"] = ", evaluate at the end"
        saves = self._every(config.checkpoint_interval) if config.checkpoint_interval else "at the end of training"
        return (
            f"{epochs_to_train(step // self.epoch_steps + 1, self.total_epochs)} of {self.epoch_steps} steps, "
            f"log {self._every(config.steps_per_loop)}{when.get(evaluations, '')}, save {saves}"
        )

    def _every(self, steps: Any) -> str:
        """Returns an interval in epochs where it is a multiple of one, else in steps."""
        epochs, rest = divmod(int(steps), self.epoch_steps or 1)
        return f"every {steps} steps" if rest else often(epochs)

    def require_reachable(self, step: int, steps: int | None) -> None:
        """Refuses fewer steps than a restored run has trained."""
        if step <= (steps or 0):
            return
        if self._epochs is None or not self._batches:
            raise UsageError(
                f"but this run has trained {step} steps already",
                key="trainer.train_steps",
                received=steps,
                remedy=f"ask for {step} steps or more, or start a new run",
            )
        trained = step / self._batches
        raise UsageError(
            f"but this run has trained {round(trained, 2):g} epoch{'' if trained == 1 else 's'} already",
            key="trainer.epochs",
            received=in_few_digits(self._epochs),
            remedy=f"ask for {math.ceil(trained)} or more, or start a new run",
        )


class EpochSchedule(Schedule):
    """Windows that are epochs: one pass over the data each, or `steps` of it.

    For `fit` and the other entry points of compiled models; experiments convert epochs to steps (`loop/config.py`,
    `in_steps`).

        schedule = EpochSchedule(epochs=4, steps=4, batches=10)
        [schedule.window_end(step) for step in (0, 4, 8, 10)]  # [4, 8, 10, 14]

    The end of a pass also ends an epoch, as in Keras: with 10 batches and 4 steps an epoch, epochs have 4, 4 and 2
    steps, and so on; with more steps than batches, an epoch is a pass. Where the number of batches is unknown, the
    first pass counts them; until `set_batches` is called, an epoch without `steps` has no end.

    Args:
      epochs: How many there are in all.
      steps: Steps of an epoch; None for a pass.
      batches: Batches of a pass; None where that is unknown, or the data is endless.
      first_epoch: The epoch that step 0 belongs to.
      validates: Whether an epoch is evaluated: for all, or a function of its number, counted from 0.
      key: The user's name for the number of epochs, for errors.
      origin: The file and line that specify it, if any.
    """

    def __init__(
        self,
        epochs: int,
        steps: int | None,
        batches: int | None = None,
        first_epoch: int = 0,
        validates: bool | Callable[[int], bool] = False,
        key: str = "epochs",
        origin: str = "",
    ) -> None:
        self.epochs, self.steps, self.batches, self.first_epoch = epochs, steps, batches, first_epoch
        self.validates = validates if callable(validates) else lambda epoch: bool(validates)
        self._key, self._origin = key, origin

    @property
    def full_epoch_steps(self) -> int | None:
        """Steps of an epoch that is not cut short; None while that is unknown."""
        return self.steps if self.batches is None else min(self.steps or self.batches, self.batches)

    @property
    def counts_batches(self) -> bool:  # type: ignore[override]
        """Whether the number of batches is unknown."""
        return self.batches is None

    @property
    def is_regular(self) -> bool:
        """Whether all epochs have the same, known number of steps."""
        return self.full_epoch_steps is not None and not (self.batches or 0) % self.full_epoch_steps

    def target(self, steps: int | None) -> int:
        """Returns the end of the last epoch or `steps`, whichever is earlier; `UNKNOWN_END` if both are unknown."""
        total = self.epoch_start(self.epochs)
        return min(UNKNOWN_END if steps is None else steps, UNKNOWN_END if total is None else total)

    def window_end(self, step: int) -> int:
        """Returns the end of the epoch that a step belongs to; `UNKNOWN_END` while that is unknown."""
        if self.full_epoch_steps is None:
            return UNKNOWN_END
        begun, rest = self._passes(step)
        end = (rest // self.full_epoch_steps + 1) * self.full_epoch_steps
        return end if self.batches is None else begun * self.batches + min(end, self.batches)

    def is_window_end(self, step: int) -> bool:
        """Whether an epoch ends after `step` steps."""
        return self.current_epoch_start(step) == step

    def evaluation_due(self, step: int, ending: bool) -> bool:
        """Whether an epoch that is evaluated ends after `step` steps."""
        return step > 0 and (ending or self.is_window_end(step)) and self.validates(self.epoch_of(step - 1))

    def save_due(self, step: int, last_saved: int, interval: int) -> bool:
        """As for steps; every epoch where epochs differ in length: multiples would miss the ends of some."""
        return super().save_due(step, last_saved, interval) or (bool(interval) and not self.is_regular)

    def set_batches(self, batches: int | None) -> bool:
        """Sets the number of batches of a pass, unless it is known; returns whether it was set."""
        if self.batches is not None or batches is None:
            return False
        self.batches = batches
        return True

    def require_reachable(self, step: int, steps: int | None) -> None:
        """Refuses fewer epochs than a restored run has trained, or begun."""
        whole, begun = self.epoch_of(step), step > self.current_epoch_start(step)
        if step > self.target(steps):
            reason = f"but epoch {whole + 1} has begun already" if begun else f"but {whole} are trained already"
            remedy = f"ask for {whole + begun} or more, or start a new run"
            raise UsageError(reason, key=self._key, received=self.epochs, remedy=remedy, origin=self._origin)

    @property
    def total_epochs(self) -> int:
        """How many epochs there are in all."""
        return self.epochs

    @property
    def epoch_steps(self) -> int | None:
        """Steps of every epoch; None where they differ, or are unknown."""
        return self.full_epoch_steps if self.is_regular and not self.first_epoch else None

    def epochs_done(self, step: int) -> float | None:
        """Returns the epochs done, with the fraction of the current one; None while their length is unknown."""
        if self.full_epoch_steps is None:
            return None
        begin = self.current_epoch_start(step)
        return self.epoch_of(step) + (step - begin) / (self.window_end(step) - begin)

    def trained(self, step: int) -> str:
        """Returns how many epochs a resumed run has done, or the one it is in."""
        done, begun = self.epoch_of(step), step > self.current_epoch_start(step)
        return f"in epoch {done + 1}" if begun else epochs_done_text(done)

    def position(self, step: int) -> str:
        """Returns the epoch that a line of the console says."""
        return f"epoch: {self.epoch_number(step):{len(str(self.epochs))}d}/{self.epochs}"

    def reached(self, step: int, end: int) -> str:
        """Returns how many epochs a run has done that has nothing left to train."""
        return f"has done {_epochs(self.epoch_number(step))}"

    def plan(self, step: int, end: int, config: TrainerConfig, evaluations: str) -> str:
        """Returns which epochs are going to be trained; in steps while the length of an epoch is unknown."""
        if self.full_epoch_steps is None:
            return super().plan(step, end, config, evaluations)
        every = max(1, (config.validation_interval or 0) // self.full_epoch_steps)  # type: ignore[operator]
        return (
            f"{epochs_to_train(self.epoch_of(step) + 1, self.epochs)} of {self.full_epoch_steps} steps"
            f"{f', evaluate {often(every)}' if evaluations == 'at intervals' else ''}"
            f"{', save every epoch' if config.checkpoint_interval else ''}"
        )

    def epoch_of(self, step: int) -> int:
        """Returns the epoch that a step belongs to."""
        begun, rest = self._passes(step)
        in_pass = rest // self.full_epoch_steps if self.full_epoch_steps else 0
        return self.first_epoch + begun * self._epochs_per_pass() + in_pass

    def epoch_number(self, step: int) -> int:
        """Returns the number, counted from 1, of the epoch that the last of `step` steps belongs to; 0 before them."""
        return self.epoch_of(step - 1) + 1 if step else self.first_epoch

    def epoch_start(self, epoch: int) -> int | None:
        """Returns the first step of an epoch; None while that is unknown."""
        epoch -= self.first_epoch
        if not epoch or self.full_epoch_steps is None:
            return None if epoch else 0
        passes, rest = divmod(epoch, self._epochs_per_pass()) if self.batches else (0, epoch)
        return passes * (self.batches or 0) + rest * self.full_epoch_steps

    def current_epoch_start(self, step: int) -> int:
        """Returns the first step of the epoch that a step belongs to."""
        rest = self._passes(step)[1]
        return step - (rest % self.full_epoch_steps if self.full_epoch_steps else rest)

    def steps_done_in_epoch(self, step: int) -> int:
        """Returns how many steps of the current epoch are done after `step` steps; at its end, all of them."""
        return step - self.current_epoch_start(step - 1) if step else 0

    def is_cut_short(self, step: int) -> bool:
        """Whether the epoch that ends after `step` steps has fewer steps than specified."""
        return self.steps is not None and self.steps_done_in_epoch(step) < self.steps

    def _passes(self, step: int) -> tuple[int, int]:
        return divmod(step, self.batches) if self.batches else (0, step)

    def _epochs_per_pass(self) -> int:
        return -(-self.batches // (self.full_epoch_steps or 1)) if self.batches else 0


def _epochs(number: float) -> str:
    return f"{number} epoch{'' if number == 1 else 's'}"


def epochs_done_text(done: int) -> str:
    """Returns `1 epoch done`."""
    return f"{done} epoch{'' if done == 1 else 's'} done"


def epochs_to_train(first: int, last: int) -> str:
    """Returns `epochs 1 to 3`, or `epoch 3` of a single one."""
    return f"epoch {first}" if first == last else f"epochs {first} to {last}"


def often(epochs: int) -> str:
    """Returns `every epoch`, or `every 2 epochs`."""
    return "every epoch" if epochs == 1 else f"every {epochs} epochs"


def warn_of_data_end(key: str) -> None:
    """Warns as Keras does where an epoch or an evaluation has fewer batches than specified by `key`."""
    doing = "training" if key == "steps_per_epoch" else "evaluation"
    warnings.warn(
        f"Your input ran out of data; interrupting {doing}. It ends where a pass over the data does: make {key} a "
        "divisor of the number of batches, or let the data repeat itself, as dataset.repeat() does.",
        stacklevel=2,
    )
