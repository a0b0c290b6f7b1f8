"""The console: a line per log, and on a terminal a live display of the run below them; in a notebook a table."""

import contextlib
import dataclasses
import io
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TextIO

from everstep.notebook import CellOutput, is_notebook, people_stream
from everstep.tracking.cell_display import CellScreen, LogTable
from everstep.tracking.history import read_history
from everstep.tracking.live_display import DisplayStatus, frame
from everstep.tracking.live_screen import LiveScreen
from everstep.tracking.metric_history import LiveMetrics, LiveRate
from everstep.tracking.number_text import value_text
from everstep.tracking.styled_lines import Line
from everstep.tracking.terminal import can_draw, only_ascii, wrapped
from everstep.tracking.tracker import LogKind, Tracker, plain
from everstep.types import CLOCKS

RATE, MFU = "steps_per_second", "mfu"
"""The names under which the loop logs its speed."""

_LABELS: dict[LogKind, str] = {"train": "train", "validation": " eval"}


@dataclasses.dataclass(frozen=True)
class Facts:
    """What the display learns from the run; None where it is unknown.

    Attributes:
      epoch: Epochs done, with the fraction of the current one.
      epochs: Epochs in all; None where the run does not count them.
      steps_per_epoch: Steps of every epoch; None where they differ, or the run does not count epochs.
      phase: What the run does, if it is not training.
      saves: Whether anything is saved at all.
      checkpoint: The step of the newest checkpoint, and its age in seconds.
      attempts: How often the run was started.
      goodput: The share of the computed steps that was kept.
    """

    epoch: float | None = None
    epochs: int | None = None
    steps_per_epoch: int | None = None
    phase: str = ""
    saves: bool = True
    checkpoint: tuple[int, float | None] | None = None
    attempts: int = 1
    goodput: float | None = None


class NoOutput(io.TextIOBase, TextIO):
    """The stream of a run that prints nothing: what is written is dropped, and lines are not even formatted."""

    def write(self, text: str) -> int:
        """Drops the text."""
        return len(text)


class ConsoleTracker(Tracker):
    """Prints a line per log; on a terminal, below them, the run's progress and metrics; a table in a notebook.

    In a log file:
      train | step:  1200 | steps/sec:  812.3 | loss: 0.31415
       eval | step:  1200 | validation_loss: 0.35

    A line has two figures of speed; the others are in `history.csv`. A stream that cannot be written to any more (a
    closed pipe, a terminal that is gone, a full disk) does not stop training.

    Args:
      total_steps: Where the run ends; the length of the bar. 0 if that is unknown.
      out: Where to write; standard error by default, in a notebook the cell.
      clock: Seconds; for the rate and the time left.
      history: The `history.csv` of the run, to show what earlier attempts have logged.
      facts: Called with the step, by the drawing thread, whenever the display is drawn; has to be cheap.
      position: Returns what a line says of its step; its number where that is empty.
    """

    def __init__(
        self,
        total_steps: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        history: Path | None = None,
        facts: Callable[[int], Facts] = lambda step: Facts(),
        position: Callable[[int], str] = lambda step: "",
    ) -> None:
        self._total_steps = total_steps
        self._position = position
        self._out: TextIO | None = people_stream() if out is None else out  # None in a process that began without one
        self._cell = CellOutput() if out is None and is_notebook() else None
        self._table = LogTable()
        self._clock = clock
        self._history = history
        self.facts = facts
        self._screen: LiveScreen | CellScreen | None = None
        self._lock = threading.Lock()  # one thread logs, another draws
        self._metrics = LiveMetrics()
        self._system: Mapping[str, float] = {}
        self._step, self._begun, self._rate = 0, 0.0, LiveRate()

    def start(self, step: int) -> None:
        """Shows the live display, if the output is a terminal."""
        self._step, self._rate = step, LiveRate()
        if self._screen is not None:  # a rollback within the attempt
            with self._lock:
                self._metrics.cut(step)
                self._table.cut(step)
            return
        with _stream_errors_suppressed():
            if self._out is not None and (self._cell is not None or can_draw(self._out)):
                self._show(self._out, step)

    def progress(self, step: int) -> None:
        """Sets the step that the next drawing shows; costs next to nothing."""
        self._step = step

    def log(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Prints one line; figures of the machine are only part of the display."""
        if kind == "system":
            self._system = dict(logs)
            return
        if isinstance(self._out, NoOutput):
            return
        values = plain(logs)
        line = self._line(step, values, kind)
        if self._screen is not None:
            with self._lock:
                self._metrics.add(step, values, kind)
                if self._cell is not None:
                    self._table.add(step, self._place(step), values, kind)
            self._screen.print(line)
        else:
            self._print(line)

    def flush(self) -> None:
        """Flushes the stream."""
        with _stream_errors_suppressed():
            if self._out is not None:
                self._out.flush()

    def close(self) -> None:
        """Leaves the last drawing where it is; later output comes below it."""
        screen, self._screen = self._screen, None
        if screen is not None:
            screen.stop()

    def status(self) -> DisplayStatus:
        """Returns what the display shows."""
        now, step, total = self._clock(), self._step, self._total_steps
        facts = self.facts(step)
        rate = self._rate.at(now, step, resting=bool(facts.phase))
        metrics = self._metrics
        return DisplayStatus(
            step=step,
            total=total or None,
            rate=rate,
            left=(total - step) / rate if total and rate and step < total else None,
            gone=now - self._begun,
            rates=dict(metrics.rates),
            metrics=metrics,
            system=self._system,
            **{field.name: getattr(facts, field.name) for field in dataclasses.fields(facts)},
        )

    def _show(self, out: TextIO, step: int) -> None:
        self._begun = self._clock()
        self._metrics = LiveMetrics()
        if self._history is not None:
            self._metrics.read(self._history)
            self._metrics.cut(step)
        if self._cell is not None:
            self._table = self._earlier_rows(step)
            self._screen = CellScreen(self._cell, self._drawn_status, self._table)
            self._screen.start()
            return
        ascii_only = only_ascii(out)

        def draw(width: int, height: int) -> list[Line]:
            with self._lock:
                return frame(self.status(), width, height, ascii_only)

        self._screen = LiveScreen(out, draw)
        self._screen.start()

    def _drawn_status(self) -> DisplayStatus:
        with self._lock:
            status = self.status()
            return dataclasses.replace(status, metrics=LiveMetrics())  # the table has them

    def _earlier_rows(self, step: int) -> LogTable:
        """Returns what earlier attempts have logged."""
        table = LogTable()
        for number, cells in read_history(self._history)[1] if self._history is not None else ():
            with contextlib.suppress(ValueError):  # a torn line
                values = {name: float(cell) for name, cell in cells.items()}
                table.add(number, self._place(number), values, "train")
        table.cut(step)
        return table

    def _place(self, step: int) -> str:
        return self._position(step) or f"step: {step:,}"

    def _print(self, line: str) -> None:
        with _stream_errors_suppressed():
            if self._out is not None:
                print(line, file=self._out, flush=True)

    def _line(self, step: int, values: Mapping[str, float], kind: LogKind) -> str:
        parts = [_LABELS[kind], self._position(step) or _step_position(step, self._total_steps)]
        parts += [f"steps/sec: {_rate(values[RATE])}"] if RATE in values else []
        parts += [f"mfu: {values[MFU]:.1%}"] if MFU in values else []
        shown = {name: value for name, value in values.items() if name not in CLOCKS or name == "eval_seconds"}
        parts += [f"{name}: {value_text(value, 5)}" for name, value in shown.items()]
        return wrapped(parts, " | ", self._out)


def _step_position(step: int, total: int) -> str:
    """Returns the number of a step as lines show it, in a column of one width."""
    return f"step: {step:{max(5, len(str(total)))}d}"


def _rate(steps_per_second: float) -> str:
    """Returns a rate with one decimal, or two digits if it is below 0.1."""
    return f"{steps_per_second:6.1f}" if steps_per_second >= 0.1 else f"{steps_per_second:6.2g}"


def _stream_errors_suppressed() -> contextlib.AbstractContextManager[None]:
    """Suppresses the errors of a stream that fails (OSError) or is closed (ValueError): it has no reader."""
    return contextlib.suppress(OSError, ValueError)
