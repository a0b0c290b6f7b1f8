"""The live display of a run: `frame` turns a `DisplayStatus` into a few lines that fit a terminal.

    ━━━━━━━━━━━━━━━━━━━╸────────────────────────────────────  35 %  1,400/4,000  epoch 1.87
    812 steps/s · 26.0k samples/s · 0:03:12 left · 0:01:44 gone · data wait 2 %
    loss      train 0.3142   validation 0.3512   best 0.3402 at 1,200   █▆▅▃▃▂▁
    accuracy  train 0.912    validation 0.905    best 0.909 at 1,200    ▁▃▄▆▇█▇
    checkpoint 1,000, 12 s ago · attempt 2 · goodput 97.3 %

`console.py` and `everstep runs watch` fill the `DisplayStatus`; `live_screen.py` draws the lines. They are made from
`styled_lines.py`, `number_text.py` and `metric_history.py`; `terminal.py` knows what a terminal can show.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from everstep.tracking.metric_history import LiveMetrics, MetricHistory
from everstep.tracking.number_text import bytes_text, clock_time, count, percent, rate_text, value_text
from everstep.tracking.styled_lines import (
    Line,
    Style,
    bar,
    cropped,
    fitted,
    in_ascii,
    joined,
    line_of,
    trend_line,
    width_of,
)


@dataclasses.dataclass
class DisplayStatus:
    """What the display shows of a run; None where it is unknown.

    Attributes:
      step: Steps done.
      total: Steps in all.
      epoch: Epochs done, with the fraction of the current one.
      epochs: Epochs in all, where the run counts epochs.
      steps_per_epoch: Steps of every epoch, where the run counts epochs; then places in it are epochs, too.
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
    epochs: int | None = None
    steps_per_epoch: int | None = None
    phase: str = ""
    rate: float | None = None
    left: float | None = None
    gone: float | None = None
    rates: Mapping[str, float] = dataclasses.field(default_factory=dict)
    metrics: LiveMetrics = dataclasses.field(default_factory=LiveMetrics)
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


def frame(status: DisplayStatus, width: int, height: int, plain: bool = False) -> list[Line]:
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
    lines = [*above, *_table(status, width, min(room, _MOST_METRICS), plain), *below]
    lines = [cropped(line, width) for line in lines[: max(1, height)]]
    return [in_ascii(line) for line in lines] if plain else lines


def _progress(status: DisplayStatus, width: int, plain: bool) -> Line:
    """Returns the progress; the bar takes the room that the numbers leave."""
    words = [count(status.step) if not status.total else f"{count(status.step)}/{count(status.total)}"]
    if status.epoch is not None:
        number = f"{status.epoch:.2f}" if isinstance(status.epoch, float) else f"{status.epoch}"
        words += [f"epoch {number}{f' of {status.epochs}' if status.epochs else ''}"]
    words += [status.phase] if status.phase else []
    words[0] += "" if status.total else " steps"
    if not status.total:
        return line_of(("  ".join(words), Style.STRONG))
    share = status.step / status.total
    text = f"  {min(1.0, share):4.0%}  {'  '.join(words)}".replace("%", " %")
    room = min(_LONGEST_BAR, width - width_of(text))
    drawn = bar(share, room if room >= _SHORTEST_BAR else 0, plain)
    return joined([drawn, line_of((text, Style.STRONG))])


def _speed(status: DisplayStatus) -> list[str]:
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


def _place(status: DisplayStatus, step: int) -> str:
    """Returns a step as the run counts: the epoch that ends there, or its number."""
    length = status.steps_per_epoch
    return f"epoch {step // length}" if length and step % length == 0 else count(step)


def _safety(status: DisplayStatus) -> list[str]:
    saved = "nothing saved yet" if status.saves else ""
    if status.checkpoint is not None:
        step, age = status.checkpoint
        saved = f"checkpoint {_place(status, step)}" + (f", {clock_time(age)} ago" if age is not None else "")
    return [
        saved,
        f"attempt {status.attempts}",
        f"goodput {percent(status.goodput, 1)}" if status.goodput is not None else "",
    ]


def _machine(status: DisplayStatus) -> list[str]:
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


def _table(status: DisplayStatus, width: int, most: int, plain: bool) -> list[Line]:
    """Returns a line per metric; if there are too many, the last one has the number of the others."""
    metrics = status.metrics.all()
    shown = metrics if len(metrics) <= most else metrics[: max(0, most - 1)]
    if not shown:
        return []
    name_width = min(_LONGEST_NAME, max(8, width // 3), max(width_of(metric.name) for metric in shown))
    cells = [[_name(metric, name_width), *_values(status, metric), trend_line(metric.trend, plain)] for metric in shown]
    lines = _aligned(cells, width)
    hidden = len(metrics) - len(shown)
    return [*lines, *([line_of((f"and {hidden} more", Style.DIM))] if hidden else [])]


def _name(metric: MetricHistory, width: int) -> Line:
    name = metric.name
    if width_of(name) > width:  # beginning and end: names differ in both
        name = f"{name[: width // 2 - 1]}…{name[-(width - width // 2) :]}"
    return line_of((name, Style.STRONG))


def _values(status: DisplayStatus, metric: MetricHistory) -> list[Line]:
    train, validation, best = metric.last("train"), metric.last("validation"), metric.best
    cells = [
        line_of() if train is None else line_of(("train ", Style.DIM), _number(train)),
        line_of() if validation is None else line_of(("validation ", Style.DIM), _number(validation)),
    ]
    if best is None:
        return [*cells, line_of()]
    step, value = best
    place = (f" at {_place(status, step)}", Style.PLAIN)
    return [*cells, line_of(("best ", Style.DIM), (value_text(value), Style.GOOD), place)]


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
