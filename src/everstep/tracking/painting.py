"""Lines for a terminal: text with a style, measured in the columns that it takes, and painted at the very end."""

import enum
import functools
import unicodedata
from typing import NamedTuple


class Style(enum.Enum):
    """How text looks; the value is what a terminal is sent before it."""

    PLAIN = ""
    DIM = "\x1b[2m"
    STRONG = "\x1b[1m"
    GOOD = "\x1b[32m"
    BAD = "\x1b[1;31m"
    TREND = "\x1b[36m"


_COLOURED = {Style.GOOD, Style.BAD, Style.TREND}
_RESET = "\x1b[0m"


class Span(NamedTuple):
    """Text in one style."""

    text: str
    style: Style = Style.PLAIN


Line = list[Span]
"""One line, without its end."""


@functools.lru_cache(4096)
def width_of(text: str) -> int:
    """Returns the columns that a text takes: two for wide letters, none for accents."""
    if text.isascii():
        return len(text)
    return sum(map(_width, text))


def cropped(line: Line, width: int) -> Line:
    """Returns a line that is no wider than this, and has no control characters in it."""
    kept: Line = []
    for text, style in line:
        part = ""
        for letter in text if text.isprintable() else map(_printable, text):
            if _width(letter) > width:
                return [*kept, Span(part, style)]
            width -= _width(letter)
            part += letter
        kept.append(Span(part, style))
    return kept


def in_ascii(text: str) -> str:
    """Returns a text of the same width that every terminal can show."""
    spelled = text.translate({ord("…"): "~", ord("·"): "|", ord("×"): "x", ord("━"): "=", ord("─"): "-", ord("╸"): ">"})
    return "".join(letter if letter.isascii() else "?" * _width(letter) for letter in spelled)


def painted(line: Line, colours: bool) -> str:
    """Returns a line as a terminal takes it; without colours, what is bold or dim still is."""
    return "".join(
        f"{style.value}{text}{_RESET}" if text.strip() and style.value and (colours or style not in _COLOURED) else text
        for text, style in line
    ).rstrip(" ")


def _printable(letter: str) -> str:
    return letter if letter.isprintable() else "?"


def _width(letter: str) -> int:
    if letter.isascii():
        return 1
    if unicodedata.combining(letter):
        return 0
    return 2 if unicodedata.east_asian_width(letter) in "WF" else 1
