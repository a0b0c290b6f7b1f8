"""A thread that looks at the machine every few seconds, while a run trains."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from everstep.tracking.system_metrics import SystemMetrics
from everstep.tracking.tracker import Tracker


@contextlib.contextmanager
def watched(tracker: Tracker, directory: Path, seconds: float, step: Callable[[], int]) -> Iterator[None]:
    """While the block runs, the figures of the machine go to a tracker, as logs of the kind `system`.

    Args:
      tracker: A `BackgroundTracker`, or one around it: it is called from another thread.
      directory: The run directory.
      seconds: Between two looks; 0: nobody looks.
      step: Returns the step at which a look is recorded.
    """
    if not seconds:
        yield
        return
    ended = threading.Event()

    def work() -> None:
        with contextlib.closing(SystemMetrics(directory)) as metrics:  # psutil compares with this thread's last look
            while not ended.wait(seconds):
                tracker.log(step(), metrics.read(), "system")

    thread = threading.Thread(target=work, name="everstep-system", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
