"""`Profile`: traces some steps of a run into `RUN/profile/`."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.engine import Trace
from everstep.loop import Hook, profiled_steps

logger = logging.getLogger(__name__)

FOLDER = "profile"
"""The folder in the run directory."""

_STEPS = 20  # the length of an automatic trace: enough to analyse, small enough to open


class Profile(Hook):
    """Traces some steps of an attempt, as configured by `trainer.profile`.

    A trace begins and ends between two calls of the engine, so it contains all steps of the calls with the requested
    ones. A failure is logged and does not stop the run.

    Args:
      trainer: The trainer whose steps are traced.
      config: The trainer's section, in steps.
      directory: The run directory.
      say: Called with a line that contains the path of the trace.
    """

    def __init__(self, trainer: Any, config: Any, directory: Path, say: Callable[[str], None]) -> None:
        self._trainer, self._config, self._directory, self._say = trainer, config, directory / FOLDER, say
        self._first = self._last = self._begun = 0
        self._trace: Trace | None = None

    def on_ready(self) -> None:
        """Chooses the steps, and begins the trace if the first of them is next."""
        step = self._trainer.global_step
        self._first, self._last = _range(self._config, step)
        self._update(step)

    def on_call_end(self, step: int) -> None:
        """Begins or ends the trace."""
        self._update(step)

    def on_exit(self, error: BaseException | None) -> None:
        """Ends a trace that is still running."""
        if self._trace is not None:
            self._end(self._trainer.global_step)

    def _update(self, step: int) -> None:
        if self._trace is not None and step >= self._last:
            self._end(step)
        elif self._trace is None and self._first <= step < self._last:
            self._begin(step)

    def _begin(self, step: int) -> None:
        self._begun = step
        try:
            self._trainer.engine.wait()
            self._trace = Trace(self._trainer.engine, self._directory, lambda: int(self._trainer.global_step))
        except Exception as error:  # such as another profiler, or missing permissions
            self._give_up(error)

    def _end(self, step: int) -> None:
        trace, self._trace = self._trace, None
        self._last = 0
        try:
            how = trace.stop() if trace is not None else ""
            self._say(f"profile of steps {self._begun} to {step}: {how.format(directory=self._directory)}")
        except Exception as error:
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        self._trace, self._last = None, 0
        logger.warning("trainer.profile: no trace could be taken: %s: %s", type(error).__name__, error)


def _range(config: Any, step: int) -> tuple[int, int]:
    """Returns the first and the last step of the trace; equal ones for no trace."""
    if not config.profile:
        return 0, 0
    if (requested := profiled_steps(config.profile)) is not None:
        return requested
    if config.train_steps is None:  # the length is unknown yet
        return step + _STEPS, step + 2 * _STEPS
    left = config.train_steps - step
    first = step + min(config.steps_per_loop, left // 2)  # everything is compiled by then
    return first, min(first + _STEPS, config.train_steps)
