"""A real terminal for tests: a program runs in a pseudo-terminal, and what its screen would show can be looked at."""

import codecs
import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence

_TOKENS = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r)|(\n)|([^\x1b\r\n]+)|(\x1b)")


class Screen:
    """A screen and its scrollback, as a terminal keeps them; knows what a display of lines needs.

    Args:
      columns: Its width.
      rows: Its height.

    Attributes:
      lines: Every line so far; the last `rows` of them are on the screen.
      styles: For every line the style of each of its letters, as it was sent.
      hidden: Whether the cursor is hidden.
    """

    def __init__(self, columns: int = 100, rows: int = 30) -> None:
        self.columns, self.rows = columns, rows
        self.lines: list[list[str]] = [[]]
        self.styles: list[list[str]] = [[]]
        self.hidden = False
        self._row = self._column = 0
        self._style = ""

    def feed(self, text: str) -> None:
        """Shows what a program has written."""
        for code, letter, carriage, newline, plain, _ in _TOKENS.findall(text):
            if letter:
                self._control(code, letter)
            elif carriage:
                self._column = 0
            elif newline:
                self._next_line()
            for character in plain:
                self._put(character)

    def text(self) -> str:
        """Returns all lines, without blanks at their ends."""
        return "\n".join("".join(line).rstrip() for line in self.lines)

    def ansi(self, rows: int) -> str:
        """Returns the last rows with their styles."""
        found = []
        for line, styles in list(zip(self.lines, self.styles, strict=True))[-rows:]:
            found.append("".join(f"{style}{letter}\x1b[0m" for letter, style in zip(line, styles, strict=True)))
        return "\n".join(found)

    def _put(self, character: str) -> None:
        if self._column >= self.columns:
            self._next_line()
            self._column = 0
        for cells, new, blank in ((self.lines, character, " "), (self.styles, self._style, "")):
            line = cells[self._row]
            line += [blank] * (self._column + 1 - len(line))
            line[self._column] = new
        self._column += 1

    def _next_line(self) -> None:
        self._row, self._column = self._row + 1, 0
        while len(self.lines) <= self._row:
            self.lines.append([])
            self.styles.append([])

    def _control(self, code: str, letter: str) -> None:
        if letter == "m":
            self._style = "" if code in ("", "0") else f"\x1b[{code}m"
        elif letter == "A":
            top = max(0, len(self.lines) - self.rows)
            self._row = max(top, self._row - int(code or 1))
        elif letter in "KJ":
            for cells in (self.lines, self.styles):
                del cells[self._row][self._column :]
                if letter == "J":
                    del cells[self._row + 1 :]
        elif code == "?25":
            self.hidden = letter == "l"


class Terminal:
    """A program in a pseudo-terminal.

    Example:
      with Terminal([sys.executable, "-c", "print(1)"]) as terminal:
          terminal.wait_for("1")
          assert terminal.end() == 0

    Args:
      command: Program and arguments.
      environment: Its whole environment.
      columns: Width of the terminal.
      rows: Its height.
      cwd: Where it runs.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        columns: int = 100,
        rows: int = 30,
        cwd: str | os.PathLike[str] | None = None,
    ) -> None:
        self.screen, self.raw = Screen(columns, rows), ""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a read may end inside of a character
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        # Tests that run in the background ignore SIGINT, and so would the program.
        former = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self.process = subprocess.Popen(
                command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=cwd, start_new_session=True
            )
        finally:
            signal.signal(signal.SIGINT, former)
        os.close(theirs)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)

    def resize(self, columns: int, rows: int) -> None:
        """Gives the terminal another size, of which the program is not notified."""
        self.screen.columns, self.screen.rows = columns, rows
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: str) -> None:
        """Presses keys; `\\t` is the tab key."""
        os.write(self._ours, keys.encode())

    def interrupt(self) -> None:
        """Presses Ctrl-C."""
        os.killpg(self.process.pid, signal.SIGINT)

    def read(self, seconds: float) -> bool:
        """Reads what the program has written, waiting at most so long; returns whether it may write more."""
        with contextlib.suppress(OSError):  # what Linux raises when the program has ended
            if not select.select([self._ours], [], [], seconds)[0]:
                return True
            if data := os.read(self._ours, 1 << 16):
                text = self._decoder.decode(data)
                self.raw += text
                self.screen.feed(text)
                return True
        return False

    def wait_for(self, found: str | Callable[[str], object], seconds: float = 300.0) -> None:
        """Reads until a text is on the screen or above it, or a function of the text returns true.

        Raises:
          AssertionError: It does not come.
        """
        appears = found if callable(found) else lambda text: found in text
        end = time.monotonic() + seconds
        while not appears(self.screen.text()):
            if time.monotonic() > end or not self.read(0.1):
                raise AssertionError(f"{found!r} does not appear in:\n{self.screen.text()}")

    def end(self, seconds: float = 300.0) -> int:
        """Reads until the program has ended; returns its exit code."""
        end = time.monotonic() + seconds
        while self.read(0.1) and time.monotonic() < end:
            pass
        return self.process.wait(max(1.0, end - time.monotonic()))
