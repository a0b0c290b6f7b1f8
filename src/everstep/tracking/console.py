"""What a person sees while a run trains: plain lines, and on a terminal one live line below them."""

import contextlib
import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TextIO

from everstep.tracking.tracker import Kind, Tracker, plain

if TYPE_CHECKING:
    from rich.progress import Progress

RATE = "steps_per_second"
"""The name under which the loop logs its speed."""

_REFRESH_SECONDS = 0.1
_LABELS: dict[Kind, str] = {"train": "train", "validation": " eval"}


class ConsoleTracker(Tracker):
    """Prints a line per log; on a terminal, progress with rate and time left.

    In a log file:
      train | step:  1200 | steps/sec:  812.3 | loss: 0.31415
       eval | step:  1200 | validation_loss: 0.35

    When there is nobody to read it any more (a closed pipe, a terminal that is gone, a full disk), training goes on.

    Args:
      total_steps: Where the run ends; the length of the bar.
      out: Where to write; standard error unless told.
      clock: Seconds; decides when the live line is redrawn, and the rate it shows.
    """

    def __init__(
        self, total_steps: int, out: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._total_steps = total_steps
        self._out: TextIO | None = sys.stderr if out is None else out  # None in a process that began without one
        self._clock = clock
        self._live: Progress | None = None
        self._next_redraw = 0.0

    def start(self, step: int) -> None:
        """Shows the live line, where there is a terminal to show it on."""
        self.close()
        with _unheard():
            if self._out is not None and self._out.isatty():
                self._live = _live_line(self._out, self._clock)
                self._live.add_task("train", total=self._total_steps, completed=step)
                self._live.start()

    def progress(self, step: int) -> None:
        """Moves the live line to `step`; cheap enough to call after every step."""
        if self._live is None or (now := self._clock()) < self._next_redraw:
            return
        self._next_redraw = now + _REFRESH_SECONDS
        self._move(step)

    def log(self, step: int, logs: Mapping[str, float], kind: Kind) -> None:
        """Prints one line."""
        line = self._line(step, logs, kind)
        with _unheard():
            if self._live is not None:
                self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)
            elif self._out is not None:
                print(line, file=self._out, flush=True)
        self._move(step)

    def flush(self) -> None:
        """Flushes the stream."""
        with _unheard():
            if self._out is not None:
                self._out.flush()

    def close(self) -> None:
        """Takes the live line away for good."""
        live, self._live = self._live, None
        self._next_redraw = 0.0
        with _unheard():
            if live is not None:
                live.stop()

    def _move(self, step: int) -> None:
        with _unheard():
            if self._live is not None:
                self._live.update(self._live.task_ids[0], completed=step, refresh=True)

    def _line(self, step: int, logs: Mapping[str, float], kind: Kind) -> str:
        values = plain(logs)
        rate = values.pop(RATE, None)
        parts = [_LABELS[kind], f"step: {step:{max(5, len(str(self._total_steps)))}d}"]
        parts += [] if rate is None else [f"steps/sec: {rate:6.1f}"]
        return " | ".join(parts + [f"{name}: {value:.5g}" for name, value in values.items()])


def _unheard() -> contextlib.AbstractContextManager[None]:
    """Within the block a stream that fails (OSError), or is closed (ValueError), is not worth a word: to whom?"""
    return contextlib.suppress(OSError, ValueError)


def _live_line(out: TextIO, clock: Callable[[], float]) -> "Progress":
    """Returns rich's progress display with our columns, redrawn only when told."""
    from rich import progress
    from rich.console import Console
    from rich.text import Text

    class Rate(progress.ProgressColumn):
        """Steps per second, as rich measures them for the time left."""

        def render(self, task: progress.Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.1f} steps/s")

    columns = (progress.BarColumn(), progress.MofNCompleteColumn(), Rate(), progress.TimeRemainingColumn())
    console = Console(file=out, force_terminal=True)
    return progress.Progress(*columns, console=console, auto_refresh=False, get_time=clock)
