"""Tracking off the training thread: numbers are handed over, and written while the device computes."""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from everstep.tracking.tracker import Kind, Tracker


class BackgroundTracker(Tracker):
    """Another tracker, called by a thread of its own, in order.

    `flush` and `close` wait until everything handed over is done. What the other tracker raised is raised at the
    next call: nothing is lost silently.

    Args:
      tracker: The tracker that does the work.
    """

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._calls: queue.Queue[Callable[[], None] | None] = queue.Queue()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self, step: int) -> None:
        """Begins an attempt."""
        self._hand_over(lambda: self._tracker.start(step))
        self._wait()

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Hands the numbers over; nobody may change them any more.

        Those of the machine come from a thread of their own, which is not told of errors: training is.
        """
        if kind != "system":
            self._raise()
        self._put(lambda: self._tracker.log(step, logs, kind))

    def log_images(self, step: int, name: str, images: Sequence[np.ndarray], captions: Sequence[str]) -> None:
        """Hands pictures over."""
        self._hand_over(lambda: self._tracker.log_images(step, name, images, captions))

    def log_text(self, step: int, name: str, texts: Sequence[str]) -> None:
        """Hands texts over."""
        self._hand_over(lambda: self._tracker.log_text(step, name, texts))

    def log_histograms(self, step: int, values: Mapping[str, np.ndarray]) -> None:
        """Hands arrays over; they are counted by the thread."""
        self._hand_over(lambda: self._tracker.log_histograms(step, values))

    def flush(self) -> None:
        """Waits until everything is written."""
        self._hand_over(self._tracker.flush)
        self._wait()

    def close(self) -> None:
        """Waits until everything is written, and ends the thread."""
        if self._thread is not None:
            self._calls.put(None)
            self._thread.join()
            self._thread = None
        self._tracker.close()
        self._raise()

    def _hand_over(self, call: Callable[[], None]) -> None:
        self._raise()
        self._put(call)

    def _put(self, call: Callable[[], None]) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="everstep-tracking", daemon=True)
            self._thread.start()
        self._calls.put(call)

    def _wait(self) -> None:
        self._calls.join()
        self._raise()

    def _raise(self) -> None:
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException as error:  # raised where the next call is made
                self._error = self._error or error
            finally:
                self._calls.task_done()
        self._calls.task_done()
