"""`Saver`: what a checkpoint of a run contains.

Beside the variables, a checkpoint contains everything that must resume with them: hooks, actions, random generators.
Their arrays are saved under keys that begin with the part's name, `callbacks/…`; their plain JSON values are in the
checkpoint's meta. A checkpoint is read before training begins; a part is restored after everything that may change it.
"""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal

from everstep.checkpoint.checkpointer import Checkpointer, NoopCheckpointer, SaveError
from everstep.errors import UsageError
from everstep.loop.hooks import Stateful
from everstep.types import State

logger = logging.getLogger(__name__)

Parts = tuple[State, dict[str, Any]]
"""The arrays of all parts, and their meta by name."""


class Saver:
    """Saves and restores a trainer with everything that must resume with it.

    Args:
      checkpointer: Where checkpoints are written.
      interval: Steps between saves; 0 for none before the end.
      seconds: Save also after so many seconds without a save.
      failure: Whether a failed save stops the run.
      parts: The parts of the state beside the variables, in the order in which they are restored.

    Attributes:
      step: The last step that was saved or restored.
      finished: Whether everything that belongs to that step was done by then.
      refused: Why the last state was not saved; empty if it was.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | None = None,
        interval: int = 0,
        seconds: float | None = None,
        failure: Literal["stop", "continue"] = "stop",
        parts: Sequence[Stateful] = (),
    ) -> None:
        self.checkpointer = checkpointer or NoopCheckpointer()
        self.interval, self.seconds, self.failure = interval, seconds, failure
        self.step, self.finished, self.refused = 0, True, ""
        self._parts = [part for part in parts if part.name]
        self._copied: State | None = None  # by the last save; its memory is reused
        self._time = time.monotonic()
        self._unrestored: Parts | None = None

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
        """Whether a save is due by time."""
        return bool(self.seconds) and step > self.step and time.monotonic() - self._time >= (self.seconds or 0)

    def is_unfinished(self, step: int) -> bool:
        """Whether this step was saved before everything that belongs to it was done."""
        return self.step == step and not self.finished

    def collect(self, trainer: Any) -> Parts:
        """Returns the state of the parts; meanwhile prefetching draws no random numbers."""
        arrays: State = {}
        metas: dict[str, Any] = {}
        with prefetch_paused(trainer):
            for part in self._parts:
                own, metas[part.name] = part.state()
                arrays |= own
        return arrays, metas

    def save(
        self,
        trainer: Any,
        parts: Parts,
        meta: Mapping[str, Any],
        metrics: Mapping[str, Any],
        problem_in_state: Callable[[int, State], str],
        finished: bool,
    ) -> None:
        """Saves a trainer, unless its state is bad; then `refused` is the reason.

        Args:
          trainer: The trainer whose state is saved.
          parts: What `collect` returned.
          meta: What else belongs to the step.
          metrics: The evaluation that belongs to the step.
          problem_in_state: Returns what is wrong with a state; empty if nothing is.
          finished: Whether everything that belongs to the step is done.
        """
        step = trainer.global_step
        with self._failure_policy():
            self.checkpointer.wait()  # the memory below may still be being written
        self._copied, own = trainer.state(self._copied)
        self.refused = problem_in_state(step, self._copied)
        if self.refused:
            return
        arrays, extra = parts
        document = {**own, **meta, "extra": extra}
        with self._failure_policy():
            self.checkpointer.save(step, {**self._copied, **arrays}, document, metrics, self.is_unfinished(step))
        self.step, self.finished, self._time = step, finished, time.monotonic()

    @contextlib.contextmanager
    def _failure_policy(self) -> Iterator[None]:
        """Decides whether a failed save, this one or an earlier one, stops the run."""
        try:
            yield
        except SaveError as error:
            if self.failure == "stop":
                raise
            logger.error("%s; training continues", error)

    def read(self, trainer: Any, trains: bool, step: int | None = None) -> dict[str, Any]:
        """Restores the variables of a trainer, and holds the state of the parts for `restore_parts`.

        Returns:
          The checkpoint's meta.

        Raises:
          UsageError: The checkpoint does not fit, or holds the state of a part that this run does not have.
        """
        state, meta = self.checkpointer.restore(step)
        extra = meta.get("extra", {})
        beginnings = tuple(f"{name}/" for name in extra)
        arrays = {key: array for key, array in state.items() if key.startswith(beginnings)}
        if trains:
            names = {part.name for part in self._parts}
            if unknown := [name for name, own in extra.items() if own and name not in names]:
                raise UsageError(
                    f"the checkpoint has the state of {', '.join(unknown)}, which this call does not have",
                    remedy="resume with the call that started the run, or start a new one",
                )
            for part in self._parts:
                if part.name in extra:
                    part.check(extra[part.name])
            self._unrestored = arrays, extra
        trainer.restore({key: array for key, array in state.items() if key not in arrays}, meta)
        self.step, self.finished, self._time = trainer.global_step, True, time.monotonic()
        return meta

    def restore_parts(self) -> None:
        """Restores the parts: after everything that may change them, before the first step.

        A part that the checkpoint does not contain keeps its present state.
        """
        if self._unrestored is None:
            return
        (arrays, metas), self._unrestored = self._unrestored, None
        for part in self._parts:
            if part.name in metas:
                own = {key: array for key, array in arrays.items() if key.startswith(f"{part.name}/")}
                part.restore(own, metas[part.name])


def prefetch_paused(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """Inside the block prefetching draws no random numbers, so that those of user code are reproducible."""
    pause: Callable[[], Any] = getattr(trainer, "prefetch_paused", contextlib.nullcontext)
    return pause()
