"""Windows that are handed to the device, and whose logs nobody has looked at yet."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

from everstep.loop.lazy_logs import LazyLogs
from everstep.types import Logs

_BEHIND = 2  # windows that the device may be behind


class PendingLogs:
    """Reads logs late, in their order: to look at them waits for the device.

    Args:
      watch: Called with the step and the logs of each window, as soon as they are read.
    """

    def __init__(self, watch: Callable[[int, Logs], None]) -> None:
        self._watch = watch
        self._unread: deque[LazyLogs] = deque()
        self._last_done = 0.0  # when the last window was over
        self.steps, self.seconds = 0, 0.0  # of all windows that were read

    def add(self, step: int, trained: Any, steps: int, begin: float, spent: float) -> Mapping[str, float]:
        """Returns the logs of a window, with its rate; what it is too far ahead of, is read.

        Args:
          step: Its last step.
          trained: What `trainer.train` returned.
          steps: How many steps it has.
          begin: When it was handed over.
          spent: Seconds that handing it over took.
        """
        logs = LazyLogs(lambda: self._read(step, dict(trained or {}), steps, begin, spent))
        self._unread.append(logs)
        if len(self._unread) > _BEHIND:
            len(self._unread.popleft())
        return logs

    def settle(self) -> None:
        """Waits for all windows handed to the device."""
        while self._unread:
            len(self._unread.popleft())

    def _read(self, step: int, logs: Logs, steps: int, begin: float, spent: float) -> Logs:
        """Adds the rate; a window begins when it is handed over, or when the one before it is done.

        Handing it over took `spent` seconds, and so did the window at least: tiny ones are over before anyone looks.
        A window that an earlier attempt has trained to its end has no rate here.
        """
        begin, self._last_done = max(begin, self._last_done), time.perf_counter()
        seconds = max(self._last_done - begin, spent, 1e-9)
        self.steps, self.seconds = self.steps + steps, self.seconds + seconds
        self._watch(step, logs)
        return {**logs, "steps_per_second": steps / seconds} if steps else logs
