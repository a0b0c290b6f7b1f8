"""A child's standard error: on to ours as it comes, with the last lines kept."""

import contextlib
import os
import re
import threading

_STDERR = 2
_BYTES_KEPT = 16384
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Passing:
    """Copies standard error in a thread of its own.

    On a terminal the child gets a terminal too, so that it shows the progress it would show without us.

    Attributes:
      child_end: The descriptor to start the child with; `begin` closes it here.
    """

    def __init__(self) -> None:
        self._our_end, self.child_end = _new_terminal() if os.isatty(_STDERR) else os.pipe()
        self._kept = b""
        self._thread = threading.Thread(target=self._copy, name="stderr", daemon=True)

    def begin(self) -> None:
        """Starts copying, when the child has its end."""
        os.close(self.child_end)
        self._thread.start()

    def end(self, seconds: float = 1.0) -> None:
        """Waits for the rest; not for ever: what the child has started may keep its end open."""
        self._thread.join(seconds)

    def last_lines(self, count: int = 15) -> list[str]:
        """Returns the last lines that say something; of a line written over and over, its last state."""
        text = _CONTROL.sub("", self._kept.decode("utf-8", errors="replace"))
        lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n")]
        return [line for line in lines if line][-count:]

    def _copy(self) -> None:
        while data := self._read():
            self._kept = (self._kept + data)[-_BYTES_KEPT:]
            with contextlib.suppress(OSError):  # nobody listens; the child must not be held up by that
                _write(data)
        os.close(self._our_end)

    def _read(self) -> bytes:
        try:
            return os.read(self._our_end, 65536)
        except OSError:  # how Linux says that nobody has the terminal's other end any more
            return b""


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(_STDERR, data) :]


def _new_terminal() -> tuple[int, int]:
    """Returns both ends of a terminal of our terminal's size that passes everything on as it is."""
    import pty  # none of these exists on every platform
    import termios
    import tty

    ours, childs = pty.openpty()
    tty.setraw(childs)
    with contextlib.suppress(OSError, termios.error):
        termios.tcsetwinsize(childs, termios.tcgetwinsize(_STDERR))
    return ours, childs
