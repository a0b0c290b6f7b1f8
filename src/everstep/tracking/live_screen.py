"""`LiveScreen`: a few lines that a thread keeps at the bottom of a terminal, below all other output."""

import contextlib
import io
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from everstep.tracking.styled_lines import Line, Painter
from everstep.tracking.terminal import terminal_size

logger = logging.getLogger(__name__)

_LEAST_PAUSE = 0.1
_SHARE = 0.003  # of the time, for drawing
_CLEAR_LINE, _CLEAR_BELOW = "\x1b[K", "\x1b[J"


class LiveScreen:
    """Keeps a few lines at the bottom of a terminal, with all other output as scrollback above them.

    While it is shown, `sys.stdout` and `sys.stderr`, where they are terminals, write above it. A thread draws, at most
    ten times a second, and so seldom that it takes only a few thousandths of the time; reporting progress or printing a
    line only queues it. Between two drawings the cursor rests on an empty line above the display. What is written past
    this class lands there, and is kept; a terminal that becomes narrower breaks nothing, since no rows are counted; and
    the cursor is never hidden, so a killed process leaves a usable terminal.

    Args:
      out: The terminal.
      draw: Called with columns and rows by the drawing thread; returns lines that fit.
    """

    def __init__(self, out: TextIO, draw: Callable[[int, int], list[Line]]) -> None:
        self._out, self._draw_lines, self._painter = out, draw, Painter()
        self._lock = threading.Lock()  # held only to queue a line
        self._drawing = threading.Lock()
        self._above: list[str] = []
        self._shown = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="everstep-display", daemon=True)
        self._failed = False
        self._redirected: list[tuple[str, Any, _Above]] = []

    def start(self) -> None:
        """Shows the display."""
        for name in ("stdout", "stderr"):
            stream = getattr(sys, name)
            with contextlib.suppress(OSError, ValueError, AttributeError):
                if stream.isatty():
                    self._redirected.append((name, stream, _Above(stream, self.print)))
                    setattr(sys, name, self._redirected[-1][2])
        self._draw()
        self._thread.start()

    def print(self, line: str) -> None:
        """Queues a line, or several, to be shown above the display."""
        with self._lock:
            self._above.append(line)

    def stop(self) -> None:
        """Draws once more, and leaves the display where it is; the cursor moves below it."""
        self._ended.set()
        self._thread.join(2.0)  # a terminal that was halted with Ctrl-S blocks
        for name, stream, ours in self._redirected:
            ours.flush()
            if getattr(sys, name) is ours:
                setattr(sys, name, stream)
        self._draw(last=True)

    def _work(self) -> None:
        pause = _LEAST_PAUSE
        while not self._ended.wait(pause):
            begin = time.thread_time()
            self._draw()
            pause = pause_after(time.thread_time() - begin)

    def _draw(self, last: bool = False) -> None:
        with self._lock:
            above, self._above = self._above, []
        with self._drawing, contextlib.suppress(OSError, ValueError):  # the terminal may be gone
            width, height = terminal_size(self._out)
            lines = self._lines(width, max(1, height - 2))
            shown = "".join(f"\n{line}{_CLEAR_LINE}" for line in lines)
            if above or last or shown != self._shown:
                self._shown = shown
                scrolled = "".join(f"{line}{_CLEAR_LINE}\n" for text in above for line in text.split("\n"))
                back = f"\n{_CLEAR_BELOW}" if last else f"{_CLEAR_BELOW}\x1b[{len(lines)}A\r"
                self._out.write(f"\r{scrolled}{_CLEAR_LINE}{shown}{back}")
                self._out.flush()

    def _lines(self, width: int, height: int) -> list[str]:
        try:
            return [self._painter.paint(line) for line in self._draw_lines(width, height)]
        except Exception:  # the display must not end a run
            if not self._failed:
                logger.exception("the display cannot be drawn; training continues")
            self._failed = True
            return []


class _Above(io.TextIOBase):
    """A stream whose lines are shown above the display; in a forked process, which does not draw, the stream itself."""

    def __init__(self, stream: Any, show: Callable[[str], None]) -> None:
        self._stream, self._show = stream, show
        self._rest = ""
        self._owner = os.getpid()

    def write(self, text: str) -> int:
        if os.getpid() != self._owner:
            return int(self._stream.write(text))
        whole, newline, rest = (self._rest + text).rpartition("\n")
        self._rest = rest
        if newline:
            self._show(whole)
        return len(text)

    def flush(self) -> None:
        """Shows an unfinished line as well: it may be a prompt."""
        if os.getpid() != self._owner:
            self._stream.flush()
        elif self._rest:
            self._show(self._rest)
            self._rest = ""

    def isatty(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return int(self._stream.fileno())

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """The encoding of the stream."""
        return str(self._stream.encoding)

    @property
    def buffer(self) -> Any:
        """Bytes bypass the display."""
        return self._stream.buffer


def pause_after(seconds: float) -> float:
    """Returns the pause after a drawing that took so many seconds."""
    return max(_LEAST_PAUSE, seconds / _SHARE)
