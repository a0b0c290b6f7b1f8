"""Logs that stay on the device until they are read, so that training does not wait for them."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.types import Logs

_BEHIND = 2  # windows that the device may be behind


class LazyLogs(Mapping[str, float]):
    """A window's logs, fetched from the device when first read, in any thread.

    Args:
      fetch: Returns the logs; called once.
    """

    def __init__(self, fetch: Callable[[], Logs]) -> None:
        self._fetch = fetch
        self._logs: Logs | None = None
        self._lock = threading.Lock()

    def then(self, change: Callable[[Logs], Logs]) -> "LazyLogs":
        """Returns logs that apply `change` to these when they are read."""
        return LazyLogs(lambda: change(self.read()))

    def read(self) -> Logs:
        """Returns the logs; waits for the device."""
        with self._lock:
            if self._logs is None:
                self._logs = self._fetch()
            return self._logs

    def __getitem__(self, name: str) -> float:
        return self.read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.read())

    def __len__(self) -> int:
        return len(self.read())

    def __repr__(self) -> str:
        return repr(self.read())


class PendingLogs:
    """The logs of windows that the device still computes; reads them late, and in their order.

    Args:
      watch: Called with the step and the logs of each window, as soon as they are read.

    Attributes:
      steps: The number of steps in all windows read so far.
      seconds: How long those windows took.
    """

    def __init__(self, watch: Callable[[int, Logs], None]) -> None:
        self._watch = watch
        self._pending: deque[LazyLogs] = deque()
        self._last_done = 0.0  # when the last window was done
        self.steps, self.seconds = 0, 0.0

    def add(self, step: int, trained: Any, steps: int, begin: float, spent: float) -> LazyLogs:
        """Returns the logs of a window, with its rate; reads an older window if the device is too far behind.

        Args:
          step: The last step of the window.
          trained: What `trainer.train` returned.
          steps: The number of steps; 0 for a window trained by an earlier attempt, which has no rate here.
          begin: When the call of `trainer.train` began.
          spent: How many seconds the call took.
        """

        def add_rate(logs: Logs) -> Logs:
            # A window begins with its call, or when the window before it is done. It took at least as long as its
            # call: tiny windows are done before their logs are read.
            started, self._last_done = max(begin, self._last_done), time.perf_counter()
            seconds = max(self._last_done - started, spent, 1e-9)
            self.steps, self.seconds = self.steps + steps, self.seconds + seconds
            self._watch(step, logs)
            return {**logs, "steps_per_second": steps / seconds} if steps else logs

        lazy = trained if isinstance(trained, LazyLogs) else LazyLogs(lambda: dict(trained or {}))
        logs = lazy.then(add_rate)
        self._pending.append(logs)
        if len(self._pending) > _BEHIND:
            self._pending.popleft().read()
        return logs

    def read_all(self) -> None:
        """Reads the logs of all windows; waits for the device."""
        while self._pending:
            self._pending.popleft().read()
