"""Logs that stay on the device until somebody reads them: the training thread hands over window after window."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from everstep.types import Logs

_BEHIND = 2  # windows that the device may be behind


class LazyLogs(Mapping[str, float]):
    """A window's logs, fetched when first read, by whichever thread reads them.

    Args:
      fetch: Returns the logs; called once.
    """

    def __init__(self, fetch: Callable[[], Logs]) -> None:
        self._fetch = fetch
        self._logs: Logs | None = None
        self._lock = threading.Lock()

    def then(self, change: Callable[[Logs], Logs]) -> "LazyLogs":
        """Passes the logs through `change` when they are fetched; to be called before anybody reads them."""
        fetch = self._fetch
        self._fetch = lambda: change(fetch())
        return self

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


class UnreadWindows:
    """The windows that were handed to the device and not read yet; reads them late, and in their order.

    Args:
      watch: Called with the step and the logs of each window, as soon as they are read.

    Attributes:
      steps: Steps of all windows that were read.
      seconds: How long they took.
    """

    def __init__(self, watch: Callable[[int, Logs], None]) -> None:
        self._watch = watch
        self._unread: deque[LazyLogs] = deque()
        self._last_done = 0.0  # when the last window was over
        self.steps, self.seconds = 0, 0.0

    def add(self, step: int, trained: Any, steps: int, begin: float, spent: float) -> LazyLogs:
        """Returns the logs of a window, with its rate; reads the windows that the device is too far behind.

        Args:
          step: Its last step.
          trained: What `trainer.train` returned.
          steps: How many steps it has; 0 for a window that an earlier attempt trained, which has no rate here.
          begin: When it was handed over.
          spent: Seconds that handing it over took.
        """

        def add_rate(logs: Logs) -> Logs:
            # A window begins when it is handed over, or when the one before it is done. It took at least as long as
            # handing it over: tiny ones are over before anyone looks.
            started, self._last_done = max(begin, self._last_done), time.perf_counter()
            seconds = max(self._last_done - started, spent, 1e-9)
            self.steps, self.seconds = self.steps + steps, self.seconds + seconds
            self._watch(step, logs)
            return {**logs, "steps_per_second": steps / seconds} if steps else logs

        logs = trained if isinstance(trained, LazyLogs) else LazyLogs(lambda: dict(trained or {}))
        self._unread.append(logs.then(add_rate))
        if len(self._unread) > _BEHIND:
            self._unread.popleft().read()
        return logs

    def settle(self) -> None:
        """Waits for all windows handed to the device."""
        while self._unread:
            self._unread.popleft().read()
