"""When a trace of a run is taken, and where it goes: `RUN/profile/`."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.engine.profiler import Trace
from everstep.loop.config import profiled_steps
from everstep.loop.hooks import Hook

logger = logging.getLogger(__name__)

FOLDER = "profile"
"""Where in the run directory."""

_STEPS = 20  # of a trace whose steps nobody has said: enough to see, and to open


class Profile(Hook):
    """Takes a trace of some steps of an attempt, if `trainer.profile` asks for one.

    It begins and ends between two calls of the engine, so it has all steps of the calls that hold those asked for.
    What goes wrong with it is said, and no reason to stop: a run is worth more than a look at it.

    Args:
      trainer: The trainer whose steps are traced.
      config: The trainer's section, in steps.
      directory: The run directory.
      say: Called with a line that tells where the trace is.
    """

    def __init__(self, trainer: Any, config: Any, directory: Path, say: Callable[[str], None]) -> None:
        self._trainer, self._config, self._directory, self._say = trainer, config, directory / FOLDER, say
        self._first = self._last = self._begun = 0
        self._trace: Trace | None = None

    def on_ready(self) -> None:
        """Chooses the steps, and begins where the first of them is next."""
        step = self._trainer.global_step
        self._first, self._last = _range(self._config, step)
        self._look(step)

    def on_call_end(self, step: int) -> None:
        """Begins or ends the trace."""
        self._look(step)

    def on_exit(self, error: BaseException | None) -> None:
        """Ends a trace that training did not."""
        if self._trace is not None:
            self._end(self._trainer.global_step)

    def _look(self, step: int) -> None:
        if self._trace is not None and step >= self._last:
            self._end(step)
        elif self._trace is None and self._first <= step < self._last:
            self._begin(step)

    def _begin(self, step: int) -> None:
        self._begun = step
        try:
            self._trainer.engine.wait()
            self._trace = Trace(self._trainer.engine, self._directory, lambda: int(self._trainer.global_step))
        except Exception as error:  # another profiler at work, a driver that does not allow it
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
    """Returns between which steps a trace is taken: nothing, where the second is not beyond the first."""
    if not config.profile:
        return 0, 0
    if (asked := profiled_steps(config.profile)) is not None:
        return asked
    if config.train_steps is None:  # nobody knows yet how many there will be
        return step + _STEPS, step + 2 * _STEPS
    left = config.train_steps - step
    first = step + min(config.steps_per_loop, left // 2)  # by then what has to be compiled is
    return first, min(first + _STEPS, config.train_steps)
