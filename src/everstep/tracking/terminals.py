"""What a stream can show: whether it is a terminal to draw on, and which letters it knows."""

import os
from collections.abc import Mapping
from typing import TextIO


def can_draw(out: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a stream is a terminal that can be drawn on."""
    known = environment.get("TERM", "") not in ("", "dumb", "unknown")
    return bool(out.isatty()) and known and os.name == "posix"


def only_ascii(out: TextIO) -> bool:
    """Returns whether a stream cannot show blocks and lines."""
    try:
        "━╸─▁█…·".encode(out.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False
