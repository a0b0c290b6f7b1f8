"""`StopAt`: a hook that interrupts a run at a time of day."""

import datetime
import math
import re
import time
from collections.abc import Callable
from typing import Any

from everstep.errors import UsageError
from everstep.loop.hooks import Hook

_FORM = re.compile(r"([01][0-9]|2[0-3]):[0-5][0-9]")


def is_time_of_day(text: str) -> bool:
    """Whether a text is a time of day, as `07:00`."""
    return _FORM.fullmatch(text) is not None


class StopAt(Hook):
    """Interrupts a run at a time of day, as a signal does: the state is saved, and the next attempt continues.

        everstep.run_experiment(task, params, "runs/night", hooks=[StopAt("07:00")])

    The time is the first one after the attempt's first step; a resumed run trains until the next day's. So it has no
    state. The run ends after the compiled call in which the time comes.

    Args:
      at: The time, as `07:00`, on the clock of this machine, in its time zone.
      clock: Seconds since the epoch.

    Raises:
      UsageError: It is no time of day.
    """

    def __init__(self, at: str, clock: Callable[[], float] = time.time) -> None:
        if not is_time_of_day(at):
            raise UsageError("expected a time of day, as '07:00'", key="StopAt", received=at)
        self._at, self._clock = at, clock
        self._end = math.inf

    def setup(self, controller: Any) -> None:
        """Checks that the loop can be interrupted.

        Raises:
          UsageError: It cannot; better now than at that time.
        """
        super().setup(controller)
        if controller.request_stop is None:
            reason = "nothing takes its request to stop"
            raise UsageError(reason, key="StopAt", received=self._at, remedy="Controller(request_stop=…)")

    def on_ready(self) -> None:
        """Determines when the time comes next."""
        now = datetime.datetime.fromtimestamp(self._clock())
        end = datetime.datetime.combine(now, datetime.time.fromisoformat(self._at))
        # Without a time zone: a day later it is the same time of day, also where the clocks change in between.
        self._end = (end if end > now else end + datetime.timedelta(days=1)).timestamp()

    def on_call_end(self, step: int) -> None:
        """Requests a stop, if the time has come."""
        if self._clock() >= self._end:
            self.controller.request_stop(f"it is {self._at}")
