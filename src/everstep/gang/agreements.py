"""What several processes agree on: functions over the meetings of a `Gang`, which all processes call alike."""

import hashlib
import json
from typing import Any

from everstep.errors import UsageError
from everstep.gang.one import Gang


def barrier(gang: Gang, name: str) -> None:
    """Returns when all processes have called it."""
    gang.gather(name, None)


def is_true_of_any(gang: Gang, name: str, flag: bool) -> bool:
    """Returns whether the flag is true on any process."""
    return any(gang.gather(name, flag))


def different_values(gang: Gang, name: str, value: Any) -> list[Any]:
    """Returns the JSON values of all processes by rank if they differ, else an empty list; digests are compared."""
    digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
    if len(set(gang.gather(f"the digest of {name}", digest))) == 1:
        return []
    return gang.gather(name, value)


def require_same(gang: Gang, name: str, value: Any, key: str = "", remedy: str = "") -> None:
    """Requires that a JSON value is the same on all processes.

    Args:
      gang: The processes.
      name: What must be equal, as in a sentence: `the configuration`.
      value: The value of this process.
      key: The configuration key or option to change.
      remedy: What to do.

    Raises:
      UsageError: On every process, if any value differs; it names the processes and both values.
    """
    if values := different_values(gang, name, value):
        different = [rank for rank, other in enumerate(values) if other != values[0]]
        who = ", ".join(str(gang.members[rank]) for rank in different)
        reason = f"{name} differs between the processes: {values[0]!r} on rank 0, but "
        raise UsageError(f"{reason}{values[different[0]]!r} on {who}", key=key, remedy=remedy)
