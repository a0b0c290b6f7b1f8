"""Keys of other libraries that a config class has not: harmless values are passed over, others refused with the reason.

    class RuntimeConfig(Config):
        _declined = {"num_packs": Declined("gradients are summed in one piece", 1)}

    config.override({"num_packs": 1})  # nothing happens: it asks for what is done anyhow
    config.override({"num_packs": 2})  # UsageError: num_packs: received 2, but gradients are summed in one piece …

So a file that another library wrote, with every field in it, can be read as it is.
"""

from collections.abc import Mapping
from typing import Any

from everstep.config.problem import Problem, show


class Declined:
    """One such key.

    Args:
      reason: Why there is no such setting here, and what to use instead; a clause that goes on after `but`.
      *harmless: Values that ask for nothing, or for what is done anyhow; None always does.
      label: Whether it is only a name for people, so that any text is harmless.
    """

    def __init__(self, reason: str, *harmless: Any, label: bool = False) -> None:
        self._reason, self._harmless, self._label = reason, harmless, label

    def passes(self, value: Any) -> bool:
        """Tells whether a value asks for nothing that is not here."""
        same = any(type(value) is type(other) and value == other for other in self._harmless)
        return value is None or same or (self._label and isinstance(value, str))

    def problem(self, name: str, value: Any) -> Problem:
        """Returns what to tell somebody who asks for it."""
        return Problem(name, f"received {show(value)}, but {self._reason}; leave it out")


def declined_by(cls: type) -> Mapping[str, Declined]:
    """Returns what a class and its bases decline, by key."""
    found: dict[str, Declined] = {}
    for base in reversed(cls.__mro__):
        found |= base.__dict__.get("_declined", {})
    return found
