"""Preemption notices: which clouds' can be watched for."""

from everstep.errors import UsageError, nearest
from everstep.run.aws import AwsWatcher
from everstep.run.gce import GceWatcher
from everstep.run.watcher import Watcher

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
        raise UsageError(f"received {name!r}, whose preemption notices are unknown: {nearest(str(name), WATCHERS)}")
    return WATCHERS[name]()
