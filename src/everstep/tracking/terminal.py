"""What a terminal can show: whether it can be drawn on, its characters, its size; text broken to its width."""

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from typing import TextIO

_INDENT = " " * 5  # of a continued line: the width of a log line's label


def can_draw(out: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a stream is a terminal that can be drawn on."""
    known = environment.get("TERM", "") not in ("", "dumb", "unknown")
    return bool(out.isatty()) and known and os.name == "posix"


def only_ascii(out: TextIO) -> bool:
    """Returns whether a stream's encoding lacks block and line characters."""
    try:
        "━╸─▁█…·".encode(out.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def terminal_size(out: TextIO) -> tuple[int, int]:
    """Returns columns and rows of a terminal now; those of `COLUMNS` and `LINES` if it does not report them."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        columns, rows = os.get_terminal_size(out.fileno())
        if columns > 0 and rows > 0:
            return columns, rows
    return tuple(shutil.get_terminal_size())  # type: ignore[return-value]


def wrapped(pieces: Sequence[str], between: str, out: TextIO | None) -> str:
    """Returns the pieces as one text, with line breaks between them if a terminal is too narrow.

    A terminal would break a line anywhere, inside a number, too. Other streams get a single line.

    Args:
      pieces: What must stay whole: words, or a name with its number.
      between: The separator.
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
    with contextlib.suppress(OSError, ValueError):  # the stream is gone, or closed
        return terminal_size(out)[0] if out is not None and out.isatty() else None
    return None
