"""`Saver`: what is in a checkpoint of a run.

Beside the variables, everything that must resume with them: hooks, actions, random generators. Their arrays join the
checkpoint's state under keys that begin with the part's name, `callbacks/…`; plain JSON values go into the checkpoint's
meta. A checkpoint is read before training begins, and a part is restored after everything that might change it.
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
      failure: Whether a save that fails stops the run.
      parts: What belongs to the state beside the variables, in the order in which it is restored.

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
        self._copied: State | None = None  # of the last save: memory to use again
        self._time = time.monotonic()
        self._unrestored: Parts | None = None

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever saved."""
        return isinstance(self.checkpointer, NoopCheckpointer)

    @property
    def is_restoring(self) -> bool:
        """Whether a checkpoint was read, and its parts are not restored yet."""
        return self._unrestored is not None

    def time_is_up(self, step: int) -> bool:
        """Whether the last save is too many seconds ago."""
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
        judge: Callable[[int, State], str],
        finished: bool,
    ) -> None:
        """Saves a trainer, unless its state is bad; then `refused` says why.

        Args:
          trainer: The trainer whose state is saved.
          parts: What `collect` returned.
          meta: What else belongs to the step.
          metrics: The evaluation that belongs to the step.
          judge: Says what is wrong with a state; empty if nothing is.
          finished: Whether everything that belongs to the step is done.
        """
        step = trainer.global_step
        with self._failure_policy():
            self.checkpointer.wait()  # what is being written must not change
        self._copied, own = trainer.state(self._copied)
        self.refused = judge(step, self._copied)
        if self.refused:
            return
        arrays, extra = parts
        document = {**own, **meta, "extra": extra}
        with self._failure_policy():
            self.checkpointer.save(step, {**self._copied, **arrays}, document, metrics, self.is_unfinished(step))
        self.step, self.finished, self._time = step, finished, time.monotonic()

    @contextlib.contextmanager
    def _failure_policy(self) -> Iterator[None]:
        """Decides whether a save that failed, this one or one before it, ends the run."""
        try:
            yield
        except SaveError as error:
            if self.failure == "stop":
                raise
            logger.error("%s; training continues", error)

    def read(self, trainer: Any, trains: bool, step: int | None = None) -> dict[str, Any]:
        """Restores the variables of a trainer, and keeps the state of the parts for `restore_parts`.

        Returns:
          The checkpoint's meta.

        Raises:
          UsageError: The checkpoint does not fit, or holds the state of a part that is not there.
        """
        state, meta = self.checkpointer.restore(step)
        extra = meta.get("extra", {})
        beginnings = tuple(f"{name}/" for name in extra)
        arrays = {key: array for key, array in state.items() if key.startswith(beginnings)}
        if trains:
            names = {part.name for part in self._parts}
            if unknown := [name for name, own in extra.items() if own and name not in names]:
                raise UsageError(
                    f"the checkpoint holds the state of {', '.join(unknown)}, which this call does not have",
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

        What older checkpoints do not have stays as it is.
        """
        if self._unrestored is None:
            return
        (arrays, metas), self._unrestored = self._unrestored, None
        for part in self._parts:
            if part.name in metas:
                own = {key: array for key, array in arrays.items() if key.startswith(f"{part.name}/")}
                part.restore(own, metas[part.name])


def prefetch_paused(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """Inside the block no thread of ours draws random numbers: those of user code depend on nothing else."""
    pause: Callable[[], Any] = getattr(trainer, "prefetch_paused", contextlib.nullcontext)
    return pause()
