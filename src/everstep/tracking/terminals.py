"""What a stream can show: whether it is a terminal to draw on, how wide it is, and which letters it knows."""

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TextIO

_INDENT = " " * 5  # before the rest of a line: as wide as what log lines begin with


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


def size(out: TextIO) -> tuple[int, int]:
    """Returns columns and rows of a terminal as it is now; those of `COLUMNS` and `LINES` where it cannot say."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        columns, rows = os.get_terminal_size(out.fileno())
        if columns > 0 and rows > 0:
            return columns, rows
    return tuple(shutil.get_terminal_size())  # type: ignore[return-value]


def wrapped(pieces: Sequence[str], between: str, out: TextIO | None) -> str:
    """Returns the pieces as one text; on a terminal that is too narrow for it with line breaks between them.

    A terminal breaks a line wherever it ends, inside a number, too. What is no terminal gets a single line.

    Args:
      pieces: What must stay whole: words, or a name with its number.
      between: What stands between two of them.
      out: Where the text will be written.
    """
    text, width = between.join(pieces), _width(out)
    if width is None or len(text) <= width:
        return text
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1] + between + piece) <= width:
            lines[-1] += between + piece
        else:
            lines.append(_INDENT + between + piece)
    return "\n".join(lines)


def _width(out: TextIO | None) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # it is gone, or closed
        return size(out)[0] if out is not None and out.isatty() else None
    return None
