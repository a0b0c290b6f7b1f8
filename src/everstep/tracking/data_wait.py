"""Advice where the device starves: one line, once, when training has waited for its data for too long."""

import logging
from collections.abc import Callable, Mapping

from everstep.tracking.tracker import LogKind, Tracker

logger = logging.getLogger(__name__)

SHARE = 0.2
"""The share of the time from which on waiting for data is worth a line."""

SECONDS = 20.0
"""How long a run is watched before that; its first window, in which workers start, does not count."""


class DataWaitAdvice(Tracker):
    """Logs once how to feed the device faster, if more than a fifth of the time went into waiting for batches.

    The time is that of the last windows, at least 20 seconds of them together.

    Args:
      advice: Returns what to do; called when it is needed.
    """

    def __init__(self, advice: Callable[[], str]) -> None:
        self._advice = advice
        self._step: int | None = None
        self._seconds = self._waited = 0.0
        self._given = False

    def start(self, step: int) -> None:
        """Begins anew: the first window after it does not count."""
        self._step, self._seconds, self._waited = None, 0.0, 0.0

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Adds a window's time; gives the advice where it is due."""
        if kind != "train" or self._given:
            return
        before, self._step = self._step, step
        rate, share = logs.get("steps_per_second"), logs.get("data_wait")
        if before is None or not rate or share is None:
            return
        seconds = (step - before) / rate
        self._seconds, self._waited = self._seconds + seconds, self._waited + share * seconds
        if self._seconds < SECONDS:
            return
        if self._waited / self._seconds > SHARE:
            self._given = True
            logger.warning(
                "training waited for data %.0f %% of the last %.0f s: %s",
                100 * self._waited / self._seconds,
                self._seconds,
                self._advice(),
            )
        self._seconds = self._waited = 0.0

    def flush(self) -> None:
        """Is not needed: advice goes to the log at once."""

    def close(self) -> None:
        """Is not needed: advice goes to the log at once."""
