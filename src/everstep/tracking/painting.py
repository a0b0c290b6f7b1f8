"""Lines for a terminal, as rich's texts: measured in columns, cut to a width, painted at the very end.

rich is loaded when the first line is made: a run that writes to a file never needs it.
"""

import enum
import functools
import importlib
import io
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text as Line
else:
    Line = Any  # one line, without its end

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
    line = _text("")
    for text, style in parts:
        line.append(_rich("control").strip_control_codes(text).translate({10: "?", 27: "?"}), style.value)
    return line


def joined(lines: Iterable[Line]) -> Line:
    """Returns several pieces as one line."""
    return _text("").join(lines)


def width_of(text: str) -> int:
    """Returns the columns that a text takes: two for wide letters, none for accents."""
    return int(_rich("cells").cell_len(text))


def cropped(line: Line, width: int) -> Line:
    """Returns a line that is no wider than this."""
    line = line.copy()
    line.truncate(width)
    return line


def in_ascii(line: Line) -> Line:
    """Returns a line of the same width that every terminal can show."""
    spelled = line.plain.translate(_ASCII)
    return _text("".join(letter if letter.isascii() else "?" for letter in spelled), list(line.spans))


class Painter:
    """Makes of lines what a terminal takes; rich finds out what that is from its environment.

    `NO_COLOR` is honoured: what is bold or dim still is.
    """

    def __init__(self, width: int = 10_000) -> None:
        self._out = io.StringIO()
        self._console = _rich("console").Console(
            file=self._out, force_terminal=True, width=width, highlight=False, legacy_windows=False
        )

    def paint(self, line: Line) -> str:
        """Returns a line with what gives it its styles."""
        self._console.print(line, soft_wrap=True, end="")
        painted = self._out.getvalue()
        self._out.seek(0)
        self._out.truncate()
        return painted.rstrip(" ")


def _text(text: str, spans: list[Any] | None = None) -> Line:
    return _rich("text").Text(text, no_wrap=True, end="", spans=spans)


@functools.cache
def _rich(module: str) -> Any:
    return importlib.import_module(f"rich.{module}")
