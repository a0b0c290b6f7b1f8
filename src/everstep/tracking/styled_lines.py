"""Lines of styled text for a terminal, by rich.

rich is loaded with the first line: a run that writes to a file never needs it.
"""

import enum
import functools
import importlib
import io
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text as Line
else:
    Line = Any  # one line, without its end

_ASCII = str.maketrans({"…": "~", "·": "|", "×": "x", "━": "=", "─": "-", "╸": ">"})


class Style(enum.StrEnum):
    """Styles of text, as rich names them."""

    PLAIN = ""
    DIM = "dim"
    STRONG = "bold"
    GOOD = "green"
    BAD = "bold red"
    TREND = "cyan"


def line_of(*parts: tuple[str, Style]) -> Line:
    """Returns a line of styled parts, without line breaks and control characters."""
    line = _text("")
    for text, style in parts:
        line.append(_rich("control").strip_control_codes(text).translate({10: "?", 27: "?"}), style.value)
    return line


def joined(lines: Iterable[Line]) -> Line:
    """Returns several pieces as one line."""
    return _text("").join(lines)


def width_of(text: str) -> int:
    """Returns the columns that a text takes: two for wide characters, none for combining ones."""
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
    """Renders lines with a terminal's escape codes; rich chooses them by the environment, and honours `NO_COLOR`."""

    def __init__(self, width: int = 10_000) -> None:
        self._out = io.StringIO()
        self._console = _rich("console").Console(
            file=self._out, force_terminal=True, width=width, highlight=False, legacy_windows=False
        )

    def paint(self, line: Line) -> str:
        """Returns a line with escape codes."""
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


_HEIGHTS = "▁▂▃▄▅▆▇█"
_NEWEST = 16


def trend_line(values: Sequence[float], plain: bool) -> Line:
    """Returns the newest values as blocks; those that are not finite as `×`. Empty for less than two values.

    Args:
      values: Oldest first.
      plain: Whether only ASCII can be shown: then the line is empty.
    """
    newest = list(values)[-_NEWEST:]
    finite = [value for value in newest if math.isfinite(value)]
    if plain or len(newest) < 2 or not finite:
        return line_of()
    low, high = min(finite), max(finite)
    return line_of(("".join(_height(value, low, high) for value in newest), Style.TREND))


def _height(value: float, low: float, high: float) -> str:
    if not math.isfinite(value):
        return "×"
    spread = high / 2 - low / 2  # halves: the whole may be more than a float holds
    share = (value / 2 - low / 2) / spread if spread > 0 else 0.0
    return _HEIGHTS[min(len(_HEIGHTS) - 1, int(share * len(_HEIGHTS)))]


def bar(done: float, width: int, plain: bool) -> Line:
    """Returns a bar of some width, of which a share is done."""
    full, half, empty = ("=", ">", "-") if plain else ("━", "╸", "─")
    filled = int(max(0.0, min(1.0, done)) * width)
    tip = half if filled < width else ""
    return line_of((full * filled + tip, Style.GOOD), (empty * (width - filled - len(tip)), Style.DIM))


def fitted(items: Sequence[str], width: int, between: str = " · ") -> str:
    """Returns the items that fit, in order; the first one in any case."""
    text = ""
    for item in items:
        longer = text + between + item if text else item
        if text and width_of(longer) > width:
            break
        text = longer
    return text
