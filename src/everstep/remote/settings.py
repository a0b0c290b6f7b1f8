"""The few times that can be set, by the environment: they belong to a machine and its network, not to a run."""

import math
import os

from everstep.errors import UsageError

INTERVAL = "EVERSTEP_UPLOAD_SECONDS"
"""Seconds between two uploads of logs, and between two renewals of the lease."""

PATIENCE = "EVERSTEP_UPLOAD_PATIENCE"
"""Seconds that the end of a run waits for a store that takes nothing."""


TIMEOUT = "EVERSTEP_STORE_TIMEOUT"
"""Seconds that a store may take for an answer; for large objects, so much more as they are larger."""


def timeout() -> float:
    """Returns the seconds that a store may take for an answer."""
    return _seconds(TIMEOUT, 20.0)


def interval() -> float:
    """Returns the seconds between two uploads of what is no checkpoint."""
    return _seconds(INTERVAL, 15.0)


def patience() -> float:
    """Returns the seconds that a store may take nothing when the run is done."""
    return _seconds(PATIENCE, 60.0)


def grace() -> float:
    """Returns the seconds there are for uploads in a run that was told to end: clouds give 30 for all of it."""
    return min(patience(), 20.0)


def _seconds(name: str, usual: float) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text) if text else usual
    except ValueError:
        seconds = math.nan
    if not 0.1 <= seconds <= 86400:
        raise UsageError(f"{name}: received {text!r}, expected seconds, from 0.1 to 86400")
    return seconds
