"""Preemption notices: polls a cloud's metadata server for the notice that this machine is about to be reclaimed."""

import abc
import functools
import http.client
import json
import logging
import os
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from everstep.errors import UsageError, nearest

logger = logging.getLogger(__name__)


class Watcher(abc.ABC):
    """Polls a metadata server for a preemption notice, in a thread of its own.

    A network failure, or a missing server, never disturbs the run: the first failure is a warning, the others are
    silent, and polling continues.

    Attributes:
      interval: Seconds between two polls.
      timeout: Seconds to wait for an answer.
    """

    interval = 1.0
    timeout = 2.0

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    @abc.abstractmethod
    def poll(self) -> str | None:
        """Polls once; returns the notice as text, None as long as there is none.

        Raises:
          OSError, ValueError: The server could not be reached, or did not answer as documented.
        """

    def start(self, on_notice: Callable[[str], None]) -> None:
        """Starts polling; calls `on_notice` once with the notice, in the watcher's thread."""
        self._thread = threading.Thread(target=self._watch, args=(on_notice,), name="preemption", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops polling; `on_notice` is no longer called. Harmless if it never started."""
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(self.timeout)

    def request(self, url: str, headers: Mapping[str, str], method: str = "GET") -> tuple[int, str]:
        """Returns the status and the text that a metadata server answers.

        The server is local to the machine: no proxy is used, and the timeout is short.

        Raises:
          OSError, ValueError, http.client.HTTPException: There is no answer, or it is not text.
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
                    logger.warning("preemption notices are not available (still trying): %s", error)
                warned = True
            if notice is None:
                self._stopped.wait(self.interval)
        if notice is not None and not self._stopped.is_set():
            on_notice(notice)


@functools.cache
def _opener() -> urllib.request.OpenerDirector:
    return urllib.request.build_opener(urllib.request.ProxyHandler({}))


class GceWatcher(Watcher):
    """Google Compute Engine: `instance/preempted` is FALSE until the machine has about 30 seconds left, then TRUE.

    See cloud.google.com/compute/docs/instances/create-use-spot. It is polled every second: the waiting form
    (`wait_for_change`) would miss a notice that was there before. GCE_METADATA_HOST names another host.
    """

    def __init__(self) -> None:
        super().__init__()
        host = os.environ.get("GCE_METADATA_HOST") or "metadata.google.internal"
        self._url = f"http://{host}/computeMetadata/v1/instance/preempted"

    def poll(self) -> str | None:
        """Polls once; see `Watcher`."""
        status, text = self.request(self._url, {"Metadata-Flavor": "Google"})
        if status != 200 or text not in ("TRUE", "FALSE"):
            raise ValueError(f"{self._url} answered {status} {text[:40]!r}, expected TRUE or FALSE")
        return "preemption notice: GCE takes this machine back" if text == "TRUE" else None


_TOKEN = "X-aws-ec2-metadata-token"
_LONGEST_TOKEN_SECONDS = 21600


class AwsWatcher(Watcher):
    """Amazon EC2 spot: `spot/instance-action` is absent (404) until the machine has about two minutes left, then JSON.

    See docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html, which recommends 5 seconds.
    Metadata needs a token, which expires (IMDSv2). AWS_EC2_METADATA_SERVICE_ENDPOINT names another server.

    Args:
      token_seconds: How long a token is valid.
    """

    interval = 5.0

    def __init__(self, token_seconds: int = _LONGEST_TOKEN_SECONDS) -> None:
        super().__init__()
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        self._base = f"{endpoint.rstrip('/')}/latest"
        self._token_seconds = token_seconds
        self._token, self._renewal = "", 0.0

    def poll(self) -> str | None:
        """Polls once; see `Watcher`."""
        status, text = self._get_action()
        if status == 401:  # the token has expired before its time
            self._renewal = 0.0
            status, text = self._get_action()
        if status == 404:
            return None
        if status != 200:
            raise ValueError(f"{self._base} answered {status} to a request for a spot interruption notice")
        notice = json.loads(text)
        if not isinstance(notice, dict) or "action" not in notice:
            raise ValueError(f"{self._base} answered {text[:80]!r}, expected JSON with an action")
        return f"preemption notice: EC2 will {notice['action']} this machine at {notice.get('time', 'an unknown time')}"

    def _get_action(self) -> tuple[int, str]:
        if time.monotonic() >= self._renewal:
            self._renew()
        return self.request(f"{self._base}/meta-data/spot/instance-action", {_TOKEN: self._token})

    def _renew(self) -> None:
        headers = {f"{_TOKEN}-ttl-seconds": str(self._token_seconds)}
        status, text = self.request(f"{self._base}/api/token", headers, "PUT")
        if status != 200:
            raise ValueError(f"{self._base} answered {status} to a request for a token")
        self._token, self._renewal = text, time.monotonic() + 0.9 * self._token_seconds


WATCHERS: dict[str, type[Watcher]] = {"gce": GceWatcher, "aws": AwsWatcher}
"""Each cloud's watcher, by the name a user types."""


def watcher(name: str) -> Watcher:
    """Returns a watcher that has not started yet.

    Example:
      notices = watcher("gce")
      notices.start(signals.request)
      ...
      notices.stop()

    Raises:
      UsageError: There is none of that name.
    """
    if name not in WATCHERS:
        close = nearest(str(name), WATCHERS)
        raise UsageError("unknown cloud", key="runtime.preemption_notice", received=name, remedy=close)
    return WATCHERS[name]()
