"""How far predictions are, for a person who waits: a line on standard error now and then."""

import contextlib
import sys
import time
from collections.abc import Callable
from typing import TextIO

_SAY_EVERY = 5.0
_REDRAW_EVERY = 0.2


class Progress:
    """Counts rows; on a terminal one line that changes, in a log file a line every five seconds.

    What takes less is not talked of. When nobody reads any more, it goes on in silence.

    Args:
      total: How many rows there will be, if that is known.
      out: Where to write; standard error unless told.
      clock: Seconds.
    """

    def __init__(
        self, total: int | None, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total, self._clock = total, clock
        self._out: TextIO | None = sys.stderr if out is None else out
        self._live = self._out is not None and self._out.isatty()
        self._every = _REDRAW_EVERY if self._live else _SAY_EVERY
        self._began = self._said = clock()
        self._shown = False
        self.rows = 0

    def add(self, rows: int) -> None:
        """Notes that more rows are done."""
        self.rows += rows
        now = self._clock()
        if now - self._said >= self._every:
            self._said, self._shown = now, True
            self._write(f"\r\x1b[K{self._line(now)}" if self._live else f"{self._line(now)}\n")

    def close(self) -> None:
        """Removes the line that changes."""
        if self._live and self._shown:
            self._write("\r\x1b[K")

    def _line(self, now: float) -> str:
        rate = self.rows / max(now - self._began, 1e-9)
        known = f" of {self._total:,} ({100 * self.rows // self._total} %)" if self._total else ""
        return f"predicted {self.rows:,}{known} rows, {rate:,.0f} rows/s"

    def _write(self, text: str) -> None:
        if self._out is not None:
            with contextlib.suppress(OSError, ValueError):
                self._out.write(text)
                self._out.flush()
