"""Logs that stay on the device until somebody looks."""

import threading
from collections.abc import Callable, Iterator, Mapping

from everstep.types import Logs


class LazyLogs(Mapping[str, float]):
    """A window's logs, fetched when first looked at, by whichever thread looks.

    The training thread need not wait for a window to end before it hands the next one to the device.

    Args:
      fetch: Returns the logs; called once.
    """

    def __init__(self, fetch: Callable[[], Logs]) -> None:
        self._fetch: Callable[[], Logs] = fetch
        self._logs: Logs | None = None
        self._lock = threading.Lock()

    def _fetched(self) -> Logs:
        with self._lock:
            if self._logs is None:
                self._logs = self._fetch()
            return self._logs

    def __getitem__(self, name: str) -> float:
        return self._fetched()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._fetched())

    def __len__(self) -> int:
        return len(self._fetched())

    def __repr__(self) -> str:
        return repr(self._fetched())
