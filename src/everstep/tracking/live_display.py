"""The live display of a run at the bottom of a terminal, in a few lines that fit its width.

    ━━━━━━━━━━━━━━━━━━━╸────────────────────────────────────  35 %  1,400/4,000  epoch 1.87
    812 steps/s · 26.0k samples/s · 0:03:12 left · 0:01:44 gone · data wait 2 %
    loss      train 0.3142   validation 0.3512   best 0.3402 at 1,200   █▆▅▃▃▂▁
    accuracy  train 0.912    validation 0.905    best 0.909 at 1,200    ▁▃▄▆▇█▇
    checkpoint 1,000, 12 s ago · attempt 2 · goodput 97.3 %

From the bottom up: what a terminal can show, styled lines (by rich, which is loaded with the first line: a run that
writes to a file never needs it), numbers as text, the metrics and the rate of a run, the lines of the display
(`frame`), and the thread that draws them (`LiveScreen`).
"""

import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import io
import logging
import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from everstep.tracking.history import read_history
from everstep.tracking.metric_names import SIDE_FIGURES, bare, direction, of_validation
from everstep.tracking.tracker import LogKind

logger = logging.getLogger(__name__)

_INDENT = " " * 5  # of a continued line: the width of a log line's label


def can_draw(out: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """Returns whether a stream is a terminal that can be drawn on."""
    known = environment.get("TERM", "") not in ("", "dumb", "unknown")
    return bool(out.isatty()) and known and os.name == "posix"


def only_ascii(out: TextIO) -> bool:
    """Returns whether a stream's encoding lacks block and line characters."""
    try:
        "━╸─▁█…·".encode(out.encoding or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return True
    return False


def terminal_size(out: TextIO) -> tuple[int, int]:
    """Returns columns and rows of a terminal now; those of `COLUMNS` and `LINES` if it does not report them."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        columns, rows = os.get_terminal_size(out.fileno())
        if columns > 0 and rows > 0:
            return columns, rows
    return tuple(shutil.get_terminal_size())  # type: ignore[return-value]


def wrapped(pieces: Sequence[str], between: str, out: TextIO | None) -> str:
    """Returns the pieces as one text, with line breaks between them if a terminal is too narrow.

    A terminal would break a line anywhere, inside a number, too. Other streams get a single line.

    Args:
      pieces: What must stay whole: words, or a name with its number.
      between: The separator.
      out: Where the text will be written.
    """
    text, width = between.join(pieces), _width(out)
    if width is None or len(text) <= width:
        return text
    lines = [pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1] + between + piece) <= width:
            lines[-1] += between + piece
        else:
            lines.append(_INDENT + between + piece)
    return "\n".join(lines)


def _width(out: TextIO | None) -> int | None:
    with contextlib.suppress(OSError, ValueError):  # the stream is gone, or closed
        return terminal_size(out)[0] if out is not None and out.isatty() else None
    return None


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


_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k"))
_DIVISORS = {"P": 1e15, "T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}


def count(number: int) -> str:
    """Returns a whole number: 12,400."""
    return f"{number:,}"


def rate_text(number: float, unit: str) -> str:
    """Returns a rate in three digits: `812 steps/s`, `26.1k samples/s`."""
    digits, prefix = _scaled(number)
    return f"{digits}{prefix} {unit}"


def bytes_text(number: float) -> str:
    """Returns a size in three digits: `1.25 GB`."""
    digits, prefix = _scaled(number)
    return f"{digits} {prefix}B"


def _scaled(number: float) -> tuple[str, str]:
    """Returns three digits of a number, and the prefix for its magnitude."""
    if not math.isfinite(number):
        return str(number), ""
    prefix = next((prefix for least, prefix in _UNITS if abs(number) >= least), "")
    scaled = number / _DIVISORS.get(prefix, 1.0)
    digits = 0 if abs(scaled) >= 100 else 1 if abs(scaled) >= 10 else 2
    return f"{scaled:,.{digits}f}", prefix


def percent(share: float, digits: int = 0) -> str:
    """Returns a share of 1: 42 %."""
    return f"{100 * share:.{digits}f} %"


def value_text(value: float) -> str:
    """Returns a metric's value in four digits; `nan` and `inf` by name."""
    return f"{value:.4g}"


def clock_time(seconds: float) -> str:
    """Returns a span of time: `12 s` below a minute, then 0:03:12; days before it where there are any."""
    if not math.isfinite(seconds):
        return "-"
    if seconds < 60:
        return f"{max(0.0, seconds):.0f} s"
    days, rest = divmod(round(seconds), 86400)
    text = f"{rest // 3600}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days} d {text}" if days else text


def fitted(items: Sequence[str], width: int, between: str = " · ") -> str:
    """Returns the items that fit, in order; the first one in any case."""
    text = ""
    for item in items:
        longer = text + between + item if text else item
        if text and width_of(longer) > width:
            break
        text = longer
    return text


TREND = 24
"""Points of a trend that are kept."""

Point = tuple[int, float]


@dataclasses.dataclass
class Metric:
    """One metric over training and validation.

    Attributes:
      name: Its name, without the prefix for training or validation.
      better: `higher` or `lower`; None where the name does not imply it.
      points: The newest points of each kind.
      bests: Of each kind every point that was the best when it came; the last one is the best so far.
    """

    name: str
    better: str | None
    points: dict[LogKind, collections.deque[Point]] = dataclasses.field(default_factory=dict)
    bests: dict[LogKind, list[Point]] = dataclasses.field(default_factory=dict)

    def add(self, step: int, value: float, kind: LogKind) -> None:
        """Adds a point."""
        self.points.setdefault(kind, collections.deque(maxlen=TREND)).append((step, value))
        bests = self.bests.setdefault(kind, [])
        if self.better and math.isfinite(value) and (not bests or self._is_better(value, bests[-1][1])):
            bests.append((step, value))

    def cut(self, step: int) -> None:
        """Drops what came after a step, which is run again."""
        for kind, points in self.points.items():
            kept = [point for point in points if point[0] <= step]
            self.points[kind] = collections.deque(kept, maxlen=TREND)
        self.bests = {kind: [best for best in bests if best[0] <= step] for kind, bests in self.bests.items()}

    def last(self, kind: LogKind) -> float | None:
        """Returns the newest value of a kind."""
        points = self.points.get(kind)
        return points[-1][1] if points else None

    @property
    def best(self) -> Point | None:
        """The best step and value: of validation where there is any, else of training."""
        bests = self.bests["validation" if self.points.get("validation") else "train"] if self.points else []
        return bests[-1] if bests else None

    @property
    def trend(self) -> list[float]:
        """The newest values: of validation once there are a few, else of training."""
        points = self.points.get("validation") or ()
        points = points if len(points) > 2 else self.points.get("train") or points
        return [value for _, value in points]

    def _is_better(self, value: float, best: float) -> bool:
        return value > best if self.better == "higher" else value < best


class LiveMetrics:
    """Every metric of a run, in the order of their first appearance, without figures of speed.

    Attributes:
      by_name: The metrics.
      rates: The last figures of speed, by name, and the learning rate.
    """

    def __init__(self) -> None:
        self.by_name: dict[str, Metric] = {}
        self.rates: dict[str, float] = {}

    def add(self, step: int, logs: Mapping[str, float], kind: LogKind) -> None:
        """Adds the logs of a window or an evaluation, which are one level deep."""
        for name, value in logs.items():
            if name in SIDE_FIGURES:
                self.rates[name] = value
            else:
                self._metric(name).add(step, value, kind)

    def cut(self, step: int) -> None:
        """Drops what came after a step."""
        for metric in self.by_name.values():
            metric.cut(step)

    def read(self, history: Path, validation: frozenset[str] = frozenset()) -> None:
        """Adds what a `history.csv` has; one that cannot be read is ignored.

        Args:
          history: The file; a last line that is not whole does not count.
          validation: Plain names that only evaluations use.
        """
        self.add_rows(read_history(history)[1], validation)

    def add_rows(self, rows: Iterable[tuple[int, Mapping[str, str]]], validation: frozenset[str] = frozenset()) -> None:
        """Adds rows of a `history.csv`: the step and the cells of each.

        Args:
          rows: The rows, in their order.
          validation: Plain names that only evaluations use.
        """
        known: dict[str, tuple[Metric | None, LogKind]] = {}  # what a column belongs to
        for step, cells in rows:
            for name, cell in cells.items():
                if name not in known:
                    kind: LogKind = "validation" if of_validation(name) or name in validation else "train"
                    known[name] = None if name in SIDE_FIGURES else self._metric(name), kind
                metric, kind = known[name]
                if (value := _float(cell)) is None:
                    continue
                if metric is None:
                    self.rates[name] = value
                else:
                    metric.add(step, value, kind)

    def copy(self) -> "LiveMetrics":
        """Returns a copy that further points do not change."""
        copied = LiveMetrics()
        copied.rates = dict(self.rates)
        for name, metric in self.by_name.items():
            points = {kind: collections.deque(held, maxlen=TREND) for kind, held in metric.points.items()}
            bests = {kind: list(held) for kind, held in metric.bests.items()}
            copied.by_name[name] = dataclasses.replace(metric, points=points, bests=bests)
        return copied

    def _metric(self, name: str) -> Metric:
        short = bare(name)
        return self.by_name.get(short) or self.by_name.setdefault(short, Metric(short, direction(short)))


def _float(cell: str) -> float | None:
    try:
        return float(cell)
    except ValueError:
        return None


_RATE_SECONDS = 30.0


class LiveRate:
    """Steps per second over about the last half minute, from observations of the step at any times.

    Only observations of a new step count: before the first one the program is compiled, and a step that takes minutes
    is not slower for being observed in between.
    """

    def __init__(self) -> None:
        self._observed: collections.deque[tuple[float, int]] = collections.deque()
        self._step: int | None = None
        self._seen = self._rested = 0.0

    def at(self, now: float, step: int, resting: bool = False) -> float | None:
        """Returns the rate; None while it is unknown.

        Args:
          now: Seconds.
          step: Steps done.
          resting: Whether the run does something else than training, such as evaluating; that time does not count.
        """
        self._rested += now - self._seen if resting else 0.0
        self._seen = now
        if self._step is None or step < self._step:  # a start, or a rollback
            self._observed.clear()
        elif step > self._step:
            self._observed.append((now - self._rested, step))
        self._step = step
        return self._rate()

    def _rate(self) -> float | None:
        observed = self._observed
        while len(observed) > 2 and observed[-1][0] - observed[0][0] > _RATE_SECONDS:
            observed.popleft()
        if len(observed) < 2 or observed[-1][0] <= observed[0][0]:
            return None
        return (observed[-1][1] - observed[0][1]) / (observed[-1][0] - observed[0][0])


@dataclasses.dataclass
class Status:
    """What the display shows of a run; None where it is unknown.

    Attributes:
      step: Steps done.
      total: Steps in all.
      epoch: Epochs done, with the fraction of the current one.
      phase: What it does, if it is not training: `starting`, `evaluating`.
      rate: Steps per second.
      left: Seconds until it is done.
      gone: Seconds since this attempt began.
      rates: The last logged figures of speed, by name.
      metrics: The metrics.
      saves: Whether anything is saved at all.
      checkpoint: The step of the newest checkpoint, and its age in seconds.
      attempts: How often it was started.
      goodput: The share of the computed steps that was kept.
      system: The last figures of the machine, by name.
    """

    step: int = 0
    total: int | None = None
    epoch: float | None = None
    phase: str = ""
    rate: float | None = None
    left: float | None = None
    gone: float | None = None
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metrics: Sequence[Metric] = ()
    saves: bool = True
    checkpoint: tuple[int, float | None] | None = None
    attempts: int = 1
    goodput: float | None = None
    system: Mapping[str, float] = dataclasses.field(default_factory=dict)


_MOST_METRICS = 8
_LONGEST_BAR, _SHORTEST_BAR = 60, 8
_LONGEST_NAME = 32
_GAP = 3
_IMPORTANCE = (0, 2, 3, 1, 4)  # columns by priority for room: name, validation, best, train, trend


def frame(status: Status, width: int, height: int, plain: bool = False) -> list[Line]:
    """Returns the lines, none wider than `width`, at most `height` of them.

    Args:
      status: The run.
      width: Columns.
      height: Rows.
      plain: Whether only ASCII can be shown.
    """
    above = [_progress(status, width, plain), _items(_speed(status), width, Style.PLAIN)]
    below = [line for items in (_safety(status), _machine(status)) if (line := _items(items, width))]
    room = max(0, height - len(above) - len(below))
    lines = [*above, *_table(status.metrics, width, min(room, _MOST_METRICS), plain), *below]
    lines = [cropped(line, width) for line in lines[: max(1, height)]]
    return [in_ascii(line) for line in lines] if plain else lines


def bar(done: float, width: int, plain: bool) -> Line:
    """Returns a bar of some width, of which a share is done."""
    full, half, empty = ("=", ">", "-") if plain else ("━", "╸", "─")
    filled = int(max(0.0, min(1.0, done)) * width)
    tip = half if filled < width else ""
    return line_of((full * filled + tip, Style.GOOD), (empty * (width - filled - len(tip)), Style.DIM))


def _progress(status: Status, width: int, plain: bool) -> Line:
    """Returns the progress; the bar takes the room that the numbers leave."""
    words = [count(status.step) if not status.total else f"{count(status.step)}/{count(status.total)}"]
    if status.epoch is not None:
        words += [f"epoch {status.epoch:.2f}" if isinstance(status.epoch, float) else f"epoch {status.epoch}"]
    words += [status.phase] if status.phase else []
    words[0] += "" if status.total else " steps"
    if not status.total:
        return line_of(("  ".join(words), Style.STRONG))
    share = status.step / status.total
    text = f"  {min(1.0, share):4.0%}  {'  '.join(words)}".replace("%", " %")
    room = min(_LONGEST_BAR, width - width_of(text))
    drawn = bar(share, room if room >= _SHORTEST_BAR else 0, plain)
    return joined([drawn, line_of((text, Style.STRONG))])


def _speed(status: Status) -> list[str]:
    rates = status.rates
    samples = rates.get("samples_per_second")
    return [
        rate_text(status.rate, "steps/s") if status.rate is not None else "",
        f"{clock_time(status.left)} left" if status.left is not None else "",
        rate_text(samples, "samples/s") if samples is not None else "",
        f"mfu {percent(rates['mfu'])}" if "mfu" in rates else "",
        f"data wait {percent(rates['data_wait'])}" if "data_wait" in rates else "",
        f"{clock_time(status.gone)} gone" if status.gone is not None else "",
        f"learning rate {value_text(rates['learning_rate'])}" if "learning_rate" in rates else "",
    ]


def _safety(status: Status) -> list[str]:
    saved = "nothing saved yet" if status.saves else ""
    if status.checkpoint is not None:
        step, age = status.checkpoint
        saved = f"checkpoint {count(step)}" + (f", {clock_time(age)} ago" if age is not None else "")
    return [
        saved,
        f"attempt {status.attempts}",
        f"goodput {percent(status.goodput, 1)}" if status.goodput is not None else "",
    ]


def _machine(status: Status) -> list[str]:
    named = {name.removeprefix("system/"): value for name, value in status.system.items()}
    words = [f"cpu {named['cpu_utilization_percentage']:.0f} %"] if "cpu_utilization_percentage" in named else []
    if (used := named.get("process_memory_usage_megabytes")) is not None:
        words.append(f"memory {bytes_text(used * 1e6)}")
    for name, value in named.items():
        if name.startswith("gpu_") and name.endswith("_utilization_percentage"):
            number = name.split("_")[1]
            memory = named.get(f"gpu_{number}_memory_usage_megabytes")
            words.append(f"gpu {number} {value:.0f} %" + ("" if memory is None else f" {bytes_text(memory * 1e6)}"))
    return words


def _items(items: Iterable[str], width: int, style: Style = Style.DIM) -> Line:
    """Returns as many of the first items as fit."""
    text = fitted([item for item in items if item], width)
    return line_of((text, style))


def _table(metrics: Sequence[Metric], width: int, most: int, plain: bool) -> list[Line]:
    """Returns a line per metric; if there are too many, the last one has the number of the others."""
    shown = metrics if len(metrics) <= most else metrics[: max(0, most - 1)]
    if not shown:
        return []
    name_width = min(_LONGEST_NAME, max(8, width // 3), max(width_of(metric.name) for metric in shown))
    cells = [[_name(metric, name_width), *_values(metric), trend_line(metric.trend, plain)] for metric in shown]
    lines = _aligned(cells, width)
    hidden = len(metrics) - len(shown)
    return [*lines, *([line_of((f"and {hidden} more", Style.DIM))] if hidden else [])]


def _name(metric: Metric, width: int) -> Line:
    name = metric.name
    if width_of(name) > width:  # beginning and end: names differ in both
        name = f"{name[: width // 2 - 1]}…{name[-(width - width // 2) :]}"
    return line_of((name, Style.STRONG))


def _values(metric: Metric) -> list[Line]:
    train, validation, best = metric.last("train"), metric.last("validation"), metric.best
    return [
        line_of() if train is None else line_of(("train ", Style.DIM), _number(train)),
        line_of() if validation is None else line_of(("validation ", Style.DIM), _number(validation)),
        line_of()
        if best is None
        else line_of(("best ", Style.DIM), (value_text(best[1]), Style.GOOD), (f" at {count(best[0])}", Style.PLAIN)),
    ]


def _number(value: float) -> tuple[str, Style]:
    return value_text(value), Style.BAD if value - value != 0 else Style.PLAIN


def _aligned(rows: list[list[Line]], width: int) -> list[Line]:
    """Returns rows with aligned cells; columns that are empty, or do not fit, are omitted."""
    columns = list(zip(*rows, strict=True))
    widths = [max(cell.cell_len for cell in column) for column in columns]
    kept, used = list[int](), 0
    for index in _IMPORTANCE:
        if widths[index] and (not kept or used + _GAP + widths[index] <= width):
            used += widths[index] + (_GAP if kept else 0)
            kept.append(index)
    lines = [line_of() for _ in rows]
    place = 0
    for index in sorted(kept):
        for line, cell in zip(lines, columns[index], strict=True):
            line.append(" " * (place - line.cell_len)).append_text(cell)
        place += widths[index] + _GAP
    return lines


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
        """That of the stream."""
        return str(self._stream.encoding)

    @property
    def buffer(self) -> Any:
        """Bytes bypass the display."""
        return self._stream.buffer


def pause_after(seconds: float) -> float:
    """Returns the pause after a drawing that took so many seconds."""
    return max(_LEAST_PAUSE, seconds / _SHARE)
