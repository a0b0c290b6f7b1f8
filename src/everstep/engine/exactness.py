"""How far the bits of a run's steps can be repeated on its GPU: the field `exactness` of `run.json`.

A level, and what belongs to it:

    {"level": "certified, operations replaced", "replaced": ["gradient of an embedding"]}
    {"level": "deterministic option", "reason": "calls hold several steps"}
"""

from collections.abc import Mapping
from typing import Any

CERTIFIED = "certified"
"""Each program was repeated from one state, and gave the same bits."""
REPLACED = "certified, operations replaced"
"""The same; what adds numbers in a random order was replaced before."""
OPTION = "deterministic option"
"""The backend was asked for deterministic operations."""
NONE = "none"
"""The bits may be others each time."""

LEVELS = (NONE, OPTION, REPLACED, CERTIFIED)
"""From the weakest to the strongest; that of a run is the weakest of its programs."""

NOT_REQUESTED = "not requested"


def as_text(exactness: Mapping[str, Any]) -> str:
    """Returns a record in one line."""
    replaced = ", ".join(exactness.get("replaced", []))
    reason = exactness.get("reason", "")
    return exactness["level"] + (f" ({replaced})" if replaced else "") + (f": {reason}" if reason else "")
