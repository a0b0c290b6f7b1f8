"""Asking Ray for a job, by the HTTP interface of its dashboard.

Ray's own client would need Ray to be installed, takes seconds to load, waits for an answer without end, and goes to
another cluster than it is told where RAY_ADDRESS is set.
"""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request

SECONDS = 3.0
"""How long a dashboard has to answer."""

_UNDER_WAY, _OVER = ("PENDING", "RUNNING"), ("SUCCEEDED", "STOPPED", "FAILED")
_MOST_BYTES = 2**20


class Unreachable(Exception):
    """No dashboard answers at an address."""


def has(address: str, job: str) -> bool | None:
    """Tells whether a cluster has a job, waiting or running; None where its answer is not understood.

    Raises:
      Unreachable: Nobody answers.
    """
    if not address.startswith(("http://", "https://")):
        return None
    url = f"{address.rstrip('/')}/api/jobs/{urllib.parse.quote(job, safe='')}"
    try:
        with urllib.request.urlopen(url, timeout=SECONDS) as answer:
            return _meaning(answer.read(_MOST_BYTES))
    except urllib.error.HTTPError as error:
        with error:
            unknown = error.code == 404 and b"does not exist" in error.read(_MOST_BYTES)
        return False if unknown else None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Unreachable(f"{address} does not answer: {error}") from error


def _meaning(answer: bytes) -> bool | None:
    try:
        status = json.loads(answer)["status"]
    except (ValueError, KeyError, TypeError):
        return None
    return True if status in _UNDER_WAY else False if status in _OVER else None
