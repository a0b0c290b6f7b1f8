"""Watching a cloud's metadata server for word that this machine is about to go away."""

import abc
import functools
import http.client
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)


class Watcher(abc.ABC):
    """Asks for a preemption notice, again and again, in a thread of its own.

    One network failure in a hundred, or a server that is not there, never disturbs the run: the first failure is a
    warning, the others are silent, and it keeps asking.

    Attributes:
      interval: Seconds between two questions.
      timeout: Seconds to wait for an answer.
    """

    interval = 1.0
    timeout = 2.0

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def poll(self) -> str | None:
        """Asks once; returns the notice in words, None as long as there is none.

        Raises:
          OSError, ValueError: It could not be asked, or did not answer as documented.
        """

    def start(self, on_notice: Callable[[str], None]) -> None:
        """Starts asking; the notice goes to `on_notice`, once, from the watcher's thread."""
        self._thread = threading.Thread(target=self._watch, args=(on_notice,), name="preemption", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends it; `on_notice` is not called any more. Harmless if it never started."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(self.timeout)

    def ask(self, url: str, headers: Mapping[str, str], method: str = "GET") -> tuple[int, str]:
        """Returns the status and the text that a metadata server answers.

        It is a part of this machine, so no proxy stands between, and it answers soon or not at all.

        Raises:
          OSError, ValueError, http.client.HTTPException: There is no answer, or it is no text.
        """
        request = urllib.request.Request(url, headers=dict(headers), method=method)
        try:
            with _opener().open(request, timeout=self.timeout) as response:
                return response.status, response.read(65536).decode("utf-8").strip()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, ""

    def _watch(self, on_notice: Callable[[str], None]) -> None:
        notice, warned = None, False
        while notice is None and not self._stopped.is_set():
            try:
                notice = self.poll()
            except (OSError, ValueError, http.client.HTTPException) as error:
                if not warned:
                    logger.warning("no preemption notice can be had (still trying): %s", error)
                warned = True
            if notice is None:
                self._stopped.wait(self.interval)
        if notice is not None and not self._stopped.is_set():
            on_notice(notice)


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))
