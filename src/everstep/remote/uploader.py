"""The thread that carries a run to the store while it trains."""

import logging
import threading
import time

from everstep.remote import settings
from everstep.remote.failures import StoreError, brief
from everstep.remote.lease import Lease, LostLease
from everstep.remote.mirror import Mirror

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class Uploader:
    """Uploads checkpoints as soon as they are there and logs now and then, and never disturbs a step.

    A store that does not answer is told of once, and tried again until the run ends; then once more, for a while.

    Args:
      mirror: What carries.
      lease: What it holds meanwhile.

    Attributes:
      error: Why not all is in the store; None if all is.
    """

    def __init__(self, mirror: Mirror, lease: Lease) -> None:
        self._mirror, self._lease = mirror, lease
        self._interval, self._patience = settings.interval(), settings.patience()
        self._closing = threading.Event()
        self._closed_at = 0.0
        self._committed = time.monotonic()
        self._told = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="everstep-upload", daemon=True)

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def close(self, seconds: float | None = None) -> Exception | None:
        """Uploads the rest; returns why that did not succeed, None if it did.

        Args:
          seconds: How long it may take; None: as long as it goes on.
        """
        self._closed_at = time.monotonic()
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            return self.error or StoreError(f"not done within {seconds:.0f} s")
        return self.error

    def _work(self) -> None:
        pause = _LOOK_SECONDS
        while True:
            closing, began = self._closing.wait(pause), time.monotonic()
            try:
                self._pass(closing)
            except LostLease as error:
                logger.error("%s: nothing more is uploaded from here", error)
                self.error = error
                return
            except Exception as error:  # whatever it is, the run does not end for it, and it is told
                self._note(error)
                pause = _LOOK_SECONDS if closing else self._longer(pause, began)
                if closing and self._gives_up():
                    return
                if closing:
                    time.sleep(pause)
            else:
                self._well()
                pause = _LOOK_SECONDS
                if closing:
                    return

    def _pass(self, closing: bool) -> None:
        self._lease.renew()
        due = time.monotonic() - self._committed >= self._interval
        if closing or due or self._mirror.has_news():
            self._mirror.commit()
            self._committed = time.monotonic()
        if not closing and self._mirror.directory.exists():
            self._mirror.fetch_awaited()

    def _longer(self, pause: float, began: float) -> float:
        """Returns how long to wait after a pass that failed: longer each time, unless the store took some of it."""
        if self._mirror.progressed >= began:
            return _FIRST_PAUSE
        return min(max(_FIRST_PAUSE, pause * 2), _LONGEST_PAUSE)

    def _gives_up(self) -> bool:
        return time.monotonic() - max(self._closed_at, self._mirror.progressed) >= self._patience

    def _note(self, error: Exception) -> None:
        self.error = error
        if not self._told:
            logger.warning("training goes on, but its results wait on this machine (still trying): %s", brief(error))
        self._told = True

    def _well(self) -> None:
        if self._told:
            logger.warning("%s has all results again", self._mirror.store.url)
        self._told, self.error = False, None
