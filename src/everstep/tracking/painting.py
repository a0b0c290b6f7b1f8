"""Lines for a terminal, as rich's texts: measured in columns, cut to a width, painted at the very end."""

import enum
import io
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.control import strip_control_codes
from rich.text import Text

Line = Text
"""One line, without its end."""

_ASCII = str.maketrans({"…": "~", "·": "|", "×": "x", "━": "=", "─": "-", "╸": ">"})


class Style(enum.StrEnum):
    """How text looks, in rich's words."""

    PLAIN = ""
    DIM = "dim"
    STRONG = "bold"
    GOOD = "green"
    BAD = "bold red"
    TREND = "cyan"


def line_of(*parts: tuple[str, Style]) -> Line:
    """Returns a line of parts in styles of their own; line breaks and control characters in them do no harm."""
    line = Text(no_wrap=True, end="")
    for text, style in parts:
        line.append(strip_control_codes(text).translate({10: "?", 27: "?"}), style.value)
    return line


def joined(lines: Iterable[Line]) -> Line:
    """Returns several pieces as one line."""
    return Text("", no_wrap=True, end="").join(lines)


def width_of(text: str) -> int:
    """Returns the columns that a text takes: two for wide letters, none for accents."""
    return cell_len(text)


def cropped(line: Line, width: int) -> Line:
    """Returns a line that is no wider than this."""
    line = line.copy()
    line.truncate(width)
    return line


def in_ascii(line: Line) -> Line:
    """Returns a line of the same width that every terminal can show."""
    spelled = line.plain.translate(_ASCII)
    return Text(
        "".join(letter if letter.isascii() else "?" for letter in spelled), no_wrap=True, end="", spans=list(line.spans)
    )


class Painter:
    """Makes of lines what a terminal takes; rich finds out what that is from its environment.

    `NO_COLOR` is honoured: what is bold or dim still is.
    """

    def __init__(self, width: int = 10_000) -> None:
        self._out = io.StringIO()
        self._console = Console(file=self._out, force_terminal=True, width=width, highlight=False, legacy_windows=False)

    def paint(self, line: Line) -> str:
        """Returns a line with what gives it its styles."""
        self._console.print(line, soft_wrap=True, end="")
        painted = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return painted.rstrip(" ")
