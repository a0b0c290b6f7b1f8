"""Interruption notices of Amazon EC2 spot instances.

`spot/instance-action` in the instance's metadata is absent (404) until the machine has about two minutes left, then
JSON with an action and a time; it should be asked every 5 seconds
(docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html). Metadata is given to those who
show a token, which expires (IMDSv2).
"""

import json
import os
import time

from everstep.run.watcher import Watcher

_TOKEN = "X-aws-ec2-metadata-token"
_LONGEST_TOKEN_SECONDS = 21600


class AwsWatcher(Watcher):
    """Watches `spot/instance-action`; AWS_EC2_METADATA_SERVICE_ENDPOINT names another server than the usual one.

    Args:
      token_seconds: How long a token is asked for.
    """

    interval = 5.0

    def __init__(self, token_seconds: int = _LONGEST_TOKEN_SECONDS) -> None:
        super().__init__()
        endpoint = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or "http://169.254.169.254"
        self._base = f"{endpoint.rstrip('/')}/latest"
        self._token_seconds = token_seconds
        self._token, self._renewal = "", 0.0

    def poll(self) -> str | None:
        """Asks once; see `Watcher`."""
        status, text = self._ask_for_action()
        if status == 401:  # the token has expired before its time
            self._renewal = 0.0
            status, text = self._ask_for_action()
        if status == 404:
            return None
        if status != 200:
            raise ValueError(f"{self._base} answered {status} when asked for a spot interruption notice")
        notice = json.loads(text)
        if not isinstance(notice, dict) or "action" not in notice:
            raise ValueError(f"{self._base} answered {text[:80]!r}, expected JSON with an action")
        return f"preemption notice: EC2 will {notice['action']} this machine at {notice.get('time', 'an unknown time')}"

    def _ask_for_action(self) -> tuple[int, str]:
        if time.monotonic() >= self._renewal:
            self._renew()
        return self.ask(f"{self._base}/meta-data/spot/instance-action", {_TOKEN: self._token})

    def _renew(self) -> None:
        status, text = self.ask(f"{self._base}/api/token", {f"{_TOKEN}-ttl-seconds": str(self._token_seconds)}, "PUT")
        if status != 200:
            raise ValueError(f"{self._base} answered {status} when asked for a token")
        self._token, self._renewal = text, time.monotonic() + 0.9 * self._token_seconds
