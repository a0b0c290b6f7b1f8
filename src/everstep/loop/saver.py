"""`Saver`: what is in a checkpoint of a run, and when one is due."""

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

from everstep.checkpoint.checkpointer import Checkpointer, NoopCheckpointer, SaveError
from everstep.loop import extra_state
from everstep.loop.extra_state import ExtraState
from everstep.types import State

logger = logging.getLogger(__name__)


class Saver:
    """Saves and restores a trainer with everything that must resume with it.

    Args:
      checkpointer: Where to.
      interval: Steps between saves; 0 for none on the way.
      seconds: Save also after so many seconds without a save.
      failure: Whether a save that fails stops the run.
      parts: What belongs to the state beside the variables.
    """

    def __init__(
        self,
        checkpointer: Checkpointer | None = None,
        interval: int = 0,
        seconds: float | None = None,
        failure: Literal["stop", "continue"] = "stop",
        parts: list[ExtraState] | None = None,
    ) -> None:
        self.checkpointer = checkpointer or NoopCheckpointer()
        self.interval, self.seconds, self.failure = interval, seconds, failure
        self.parts = parts or []
        self.step = 0  # the last one saved or restored
        self._copied: State | None = None  # of the last save: memory to use again
        self._time = time.monotonic()
        self._to_put_back: tuple[State, dict[str, Any]] | None = None

    @property
    def is_off(self) -> bool:
        """Whether nothing is ever saved."""
        return isinstance(self.checkpointer, NoopCheckpointer)

    @property
    def goes_on(self) -> bool:
        """Whether a checkpoint was read, and not all of it is put back yet."""
        return self._to_put_back is not None

    def is_due(self, step: int) -> bool:
        """Whether to save at the end of a loop: a multiple of the interval was passed, or the time is up."""
        if self.interval and step // self.interval > self.step // self.interval:
            return True
        return bool(self.seconds) and step > self.step and time.monotonic() - self._time >= (self.seconds or 0)

    def collect(self, trainer: Any) -> tuple[State, dict[str, Any]]:
        """Returns the state of the parts; meanwhile nobody else draws random numbers."""
        with undisturbed(trainer):
            return extra_state.collect(self.parts)

    def save(
        self,
        trainer: Any,
        meta: Mapping[str, Any],
        metrics: Mapping[str, Any],
        judge: Callable[[int, State], str],
        parts: tuple[State, dict[str, Any]],
        replace: bool = False,
    ) -> str:
        """Saves a trainer, unless its state is bad.

        Args:
          trainer: It.
          meta: What else belongs to the step.
          metrics: The evaluation that belongs to the step.
          judge: Says what is wrong with a state; empty if nothing is.
          parts: What `collect` returned.
          replace: Whether the step is saved already, but not all of it.

        Returns:
          Why nothing was saved; empty if something was.
        """
        step = trainer.global_step
        with self._policy():
            self.checkpointer.wait()  # of what is being written, nothing may change
        self._copied, own = trainer.state(self._copied)
        if reason := judge(step, self._copied):
            return reason
        arrays, extra = parts
        document = {**own, **meta, "extra": extra}
        with self._policy():
            self.checkpointer.save(step, {**self._copied, **arrays}, document, metrics, replace)
        self.step, self._time = step, time.monotonic()
        return ""

    @contextlib.contextmanager
    def _policy(self) -> Iterator[None]:
        """Whether a save that failed, this one or one before it, ends the run."""
        try:
            yield
        except SaveError as error:
            if self.failure == "stop":
                raise
            logger.error("%s; training goes on", error)

    def restore(self, target: Any, trains: bool, step: int | None = None) -> dict[str, Any]:
        """Restores a trainer, and keeps the state of the parts for `put_back`; returns the rest.

        Raises:
          UsageError: The checkpoint does not fit.
        """
        state, meta = self.checkpointer.restore(step)
        extra = meta.get("extra", {})
        state, arrays = extra_state.split(state, extra)
        if trains:
            extra_state.prepare(self.parts, extra)
            self._to_put_back = arrays, extra
        target.restore(state, meta)
        self.step, self._time = target.global_step, time.monotonic()
        return meta

    def put_back(self) -> None:
        """Puts back the state of the parts: after everything that may change it, before the first step."""
        if self._to_put_back is not None:
            extra_state.put_back(self.parts, *self._to_put_back)
            self._to_put_back = None


def undisturbed(trainer: Any) -> contextlib.AbstractContextManager[None]:
    """Inside the block no thread of ours draws random numbers: those of user code depend on nothing else."""
    pause: Callable[[], Any] = getattr(trainer, "undisturbed", contextlib.nullcontext)
    return pause()
