"""`Saver`: what a checkpoint of a run contains.

Frozen variables are saved once, and checkpoints refer to them (`frozen.py`). Beside the other variables, a checkpoint
contains everything that must resume with them, part by part: hooks, among them that of the actions, and the random
generators (`hooks.StatePart`). The arrays of a part are saved under keys that begin with its name, `callbacks/…`; its
plain JSON values are in the checkpoint's meta.

A checkpoint is read in two steps. `restore_variables` reads it before training begins. `restore_parts` restores the
parts when everything has happened that may change them, in the order of `Saver(parts=…)`. `Controller.__init__` decides
that order: the hooks as they were passed, and random generators last, because restoring may draw numbers.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from everstep.checkpoint import Base, Checkpointer, NoopCheckpointer, SaveError
from everstep.errors import UsageError
from everstep.gang import current_gang
from everstep.loop import same_state
from everstep.loop.hooks import StatePart
from everstep.types import OwnState, State

logger = logging.getLogger(__name__)

PartStates = tuple[State, dict[str, Any]]
"""The arrays of all parts by key, and the JSON values of each part by its name."""

_PARTS_KEY, _OLD_PARTS_KEY = "parts", "extra"


def saved_parts(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON values of the parts in a checkpoint's meta; checkpoints of older versions have another key."""
    parts: dict[str, Any] = meta.get(_PARTS_KEY, meta.get(_OLD_PARTS_KEY, {}))
    return parts


class Saver:
    """Saves and restores a trainer with everything that must resume with it.

    Args:
      checkpointer: Where checkpoints are written.
      interval: Steps between saves; 0 for none before the end.
      seconds: Save also after so many seconds without a save.
      failure: What a failed save does: `stop` raises it; `continue` logs it, and training goes on. The last save of a
        run must succeed in any case: `require_saved`.
      parts: The parts of the state beside the variables, in the order in which they are restored.

    Attributes:
      step: The last step that was restored, or handed over to be saved.
      refused: Why the last state was not saved; empty if it was.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | None = None,
        interval: int = 0,
        seconds: float | None = None,
        failure: Literal["stop", "continue"] = "stop",
        parts: Sequence[StatePart] = (),
    ) -> None:
        self.checkpointer = checkpointer or NoopCheckpointer()
        self.interval, self.seconds, self.failure = interval, seconds, failure
        self.step, self.refused = 0, ""
        self._parts = [part for part in parts if part.name]
        self._copied: OwnState | None = None  # by the last save; its memory is reused
        self._time = time.monotonic()
        self._unrestored: PartStates | None = None
        self._failed: tuple[int, SaveError] | None = None  # the last save, if it failed: its step and its error

    @property
    def is_disabled(self) -> bool:
        """Whether nothing is ever saved."""
        return isinstance(self.checkpointer, NoopCheckpointer)

    @property
    def is_restoring(self) -> bool:
        """Whether a checkpoint was read, and its parts are not restored yet."""
        return self._unrestored is not None

    def start_at(self, step: int) -> None:
        """Counts save intervals from a step at which a new run begins."""
        self.step = step

    def time_is_up(self, step: int) -> bool:
        """Whether a save is due by time; of several processes, by the clock of the first one."""
        if not self.seconds or step <= self.step:
            return False
        return bool(current_gang().share("a save by time", time.monotonic() - self._time >= self.seconds))

    def prepare(self, trainer: Any) -> None:
        """Has a trainer prepare its first copy, which would take longer otherwise; called before training."""
        if not self.is_disabled:
            has_all = trainer.frozen is None or not self.checkpointer.keeps_base
            trainer.prepare_copies(() if has_all else trainer.frozen.candidates)

    def collect_parts(self, trainer: Any) -> PartStates:
        """Returns the state of the parts; meanwhile prefetching draws no random numbers."""
        arrays: State = {}
        values: dict[str, Any] = {}
        with trainer.prefetch_paused():
            for part in self._parts:
                part_arrays, values[part.name] = part.state()
                arrays |= part_arrays
        return arrays, values

    def save(
        self,
        trainer: Any,
        parts: PartStates,
        meta: Mapping[str, Any],
        metrics: Mapping[str, Any],
        problem_in_state: Callable[[int, OwnState], str],
        replace: bool,
    ) -> bool:
        """Saves a trainer, unless its state is bad; then `refused` is the reason.

        Args:
          trainer: The trainer whose state is saved.
          parts: What `collect_parts` returned.
          meta: What else belongs to the step.
          metrics: The evaluation that belongs to the step.
          problem_in_state: Returns what is wrong with a state; empty if nothing is.
          replace: Whether to replace an existing checkpoint of the step.

        Returns:
          Whether the state was handed over to be written.

        Raises:
          TrainingError: Several processes train together, and their states differ.
        """
        step = trainer.global_step
        self.wait()  # the memory below may still be being written
        base = self.base_of(trainer)
        without = {} if base is None else {"without": trainer.frozen.keys}
        self._copied, trainer_meta = trainer.state(self._copied, **without)
        self.refused = problem_in_state(step, self._copied)
        if self.refused:
            return False
        same_state.require(current_gang(), step, self._copied)
        arrays, values = parts
        document = {**trainer_meta, **meta, _PARTS_KEY: values}
        with self._failure_policy(step):
            self._failed = None
            on = {} if base is None else {"base": base}
            self.store_base(base, trainer)
            self.checkpointer.save(step, {**self._copied, **arrays}, document, metrics, replace, **on)
            self.step, self._time = step, time.monotonic()
        return self._failed is None

    def base_of(self, trainer: Any) -> Base | None:
        """Returns where the frozen weights of a trainer are, which its checkpoints do not contain; None for nowhere."""
        return trainer.frozen.base() if trainer.frozen is not None and self.checkpointer.keeps_base else None

    def store_base(self, base: Base | None, trainer: Any) -> None:
        """Saves the frozen weights of a trainer, unless they are saved, or the task provides them.

        Raises:
          SaveError: They cannot be written.
        """
        if base is not None and not base.name and not self.checkpointer.has_base(base):
            self.checkpointer.save_base(base, trainer.frozen.values())

    def wait(self) -> None:
        """Waits until the last save is on disk.

        Raises:
          SaveError: It failed, and a failed save stops the run.
        """
        with self._failure_policy(self.step):
            self.checkpointer.wait()

    def require_saved(self, step: int) -> None:
        """Waits until the last save is on disk; called where no other save follows.

        Raises:
          SaveError: It failed, and is that of `step`, or a failed save stops the run.
        """
        self.wait()
        if self._failed is not None and self._failed[0] == step:
            raise self._failed[1]

    @contextlib.contextmanager
    def _failure_policy(self, step: int) -> Iterator[None]:
        """Remembers that the save of a step failed, and decides whether that stops the run."""
        try:
            yield
        except SaveError as error:
            self._failed = step, error
            if self.failure == "stop":
                raise
            logger.error("%s; training continues", error)

    def restore_variables(self, trainer: Any, trains: bool, step: int | None = None) -> dict[str, Any]:
        """Restores the variables of a trainer, and keeps the state of the parts for `restore_parts`.

        Args:
          trainer: The trainer.
          trains: Whether it will train; to evaluate, the parts are not needed.
          step: The checkpoint's step; None for the newest.

        Returns:
          The checkpoint's meta.

        Raises:
          UsageError: The checkpoint does not fit, or has the state of a part that this run does not have.
        """
        state, meta = self.checkpointer.restore(step)
        values = saved_parts(meta)
        beginnings = tuple(f"{name}/" for name in values)
        arrays = {key: np.asarray(array) for key, array in state.items() if key.startswith(beginnings)}
        if trains:
            names = {part.name for part in self._parts}
            if unknown := [name for name, value in values.items() if value and name not in names]:
                raise UsageError(
                    f"the checkpoint has the state of {', '.join(unknown)}, which this call does not have",
                    remedy="resume with the call that started the run, or start a new one",
                )
            for part in self._parts:
                if part.name in values:
                    part.check(values[part.name])
            self._unrestored = arrays, values
        trainer.restore({key: array for key, array in state.items() if key not in arrays}, meta)
        self.step, self._time = trainer.global_step, time.monotonic()
        return meta

    def restore_parts(self) -> None:
        """Restores the parts in their order: after everything that may change them, before the first step.

        A part that the checkpoint does not contain keeps its present state.
        """
        if self._unrestored is None:
            return
        (arrays, values), self._unrestored = self._unrestored, None
        for part in self._parts:
            if part.name in values:
                part_arrays = {key: array for key, array in arrays.items() if key.startswith(f"{part.name}/")}
                part.restore(part_arrays, values[part.name])
