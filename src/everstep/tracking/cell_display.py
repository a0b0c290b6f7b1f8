"""The display of a run in a notebook: progress and a small table, one output of the cell, replaced as the run trains.

What stays in the saved notebook is its last state: a line on the whole run, and the last rows of the table.
"""

import dataclasses
import html as markup
import logging
import threading
from collections.abc import Callable, Mapping, Sequence

from everstep.notebook import CellOutput
from everstep.tracking.live_display import DisplayStatus
from everstep.tracking.metric_names import SIDE_FIGURES, bare, direction, of_validation
from everstep.tracking.number_text import clock_time, count, rate_text, value_text
from everstep.tracking.tracker import LogKind

logger = logging.getLogger(__name__)

_PAUSE = 0.5
_MOST_ROWS = 8
_MOST_COLUMNS = 10


@dataclasses.dataclass
class LogRow:
    """What was logged at one step.

    Attributes:
      place: What the row is called: `epoch: 3/5`, `step: 1200`.
      values: The metrics, by their columns.
    """

    place: str
    values: dict[str, float] = dataclasses.field(default_factory=dict)


class LogTable:
    """The metrics of a run, a row for each step that was logged, a column for each metric of training or validation."""

    def __init__(self) -> None:
        self.rows: dict[int, LogRow] = {}
        self.columns: dict[str, None] = {}

    def add(self, step: int, place: str, values: Mapping[str, float], kind: LogKind) -> None:
        """Adds the logs of a window or an evaluation."""
        row = self.rows.setdefault(step, LogRow(place))
        for name, value in values.items():
            if name not in SIDE_FIGURES:
                is_validation = kind == "validation" or of_validation(name)
                column = f"val_{bare(name)}" if is_validation else bare(name)
                self.columns.setdefault(column)
                row.values[column] = value

    def cut(self, step: int) -> None:
        """Drops what came after a step, which is run again."""
        self.rows = {number: row for number, row in self.rows.items() if number <= step}

    def best(self) -> int | None:
        """Returns the step with the best value of the first metric of validation, else of training."""
        names = sorted(self.columns, key=lambda name: not name.startswith("val_"))
        name = next((name for name in names if direction(name)), "")
        sign = -1 if direction(name) == "higher" else 1
        known = [(sign * row.values[name], step) for step, row in self.rows.items() if name in row.values]
        return min((pair for pair in known if pair[0] == pair[0]), default=(0.0, None))[1]

    def shown(self) -> list[int]:
        """Returns the steps of the rows to show: the last ones, and the best."""
        steps = sorted(self.rows)
        best = self.best()
        return sorted({*steps[-_MOST_ROWS:], *([] if best is None else [best])})


class CellScreen:
    """Draws the display in the cell, twice a second while it changes.

    Args:
      output: Where it is shown.
      status: Returns what the run does now.
      table: What was logged.
    """

    def __init__(self, output: CellOutput, status: Callable[[], DisplayStatus], table: LogTable) -> None:
        self._output, self._status, self._table = output, status, table
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="everstep-display", daemon=True)
        self._shown = ""
        self._failed = False

    def start(self) -> None:
        """Shows the display."""
        self._draw()
        self._thread.start()

    def print(self, line: str) -> None:
        """Does nothing: what was logged is in the table."""

    def stop(self) -> None:
        """Draws once more; this is what is saved."""
        self._ended.set()
        self._thread.join(2.0)
        self._draw(ended=True)

    def _work(self) -> None:
        while not self._ended.wait(_PAUSE):
            self._draw()

    def _draw(self, ended: bool = False) -> None:
        try:
            status = self._status()
            html = cell_html(status, self._table, ended)
            if html != self._shown:
                self._shown = html
                self._output.show({"text/html": html, "text/plain": cell_text(status, self._table, ended)})
        except Exception:  # the display must not end a run
            if not self._failed:
                logger.exception("the display cannot be drawn; training continues")
            self._failed = True


def cell_html(status: DisplayStatus, table: LogTable, ended: bool) -> str:
    """Returns the display as HTML; it has no script, and takes its colours from the notebook."""
    share = min(1.0, status.step / status.total) if status.total else 1.0
    head = f'<div style="font-variant-numeric:tabular-nums">{markup.escape(_headline(status, ended))}</div>'
    bar = "" if share == 1 else _html_bar(share)
    return f'<div class="everstep-run">{head}{bar}{_html_table(table)}</div>'


def _html_bar(share: float) -> str:
    style = "height:5px;border-radius:3px"
    done = f'<div style="{style};background:#2458d3;width:{100 * share:.1f}%"></div>'
    return f'<div style="{style};background:rgba(128,128,128,.25);max-width:32em;margin:4px 0 8px">{done}</div>'


def cell_text(status: DisplayStatus, table: LogTable, ended: bool) -> str:
    """Returns the display as lines of text, for what shows no HTML."""
    rows = _cells(table)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([_headline(status, ended), *lines])


def _headline(status: DisplayStatus, ended: bool) -> str:
    """Returns a line: `epoch 3 · 1,200/2,000 steps · 812 steps/s · 0:12 left`."""
    steps = f"{count(status.step)}/{count(status.total)} steps" if status.total else f"{count(status.step)} steps"
    if ended:
        done = status.total is None or status.step >= status.total
        took = [] if status.gone is None else [clock_time(status.gone)]
        parts = [f"trained {count(status.step)} steps" if done else f"ended at {steps}", *took]
        rate = status.rates.get("steps_per_second")
    else:
        parts = [*([status.phase] if status.phase else []), steps]
        rate = status.rate
    parts += [rate_text(rate, "steps/s")] if rate else []
    parts += [f"{clock_time(status.left)} left"] if status.left is not None and not ended else []
    parts += [f"attempt {status.attempts}"] if status.attempts > 1 else []
    return " · ".join(parts)


def _cells(table: LogTable) -> list[list[str]]:
    """Returns the table as text, its header first; [] without rows."""
    if not table.rows:
        return []
    columns = list(table.columns)[:_MOST_COLUMNS]
    places = {step: row.place.partition(":") for step, row in table.rows.items()}
    name = next(iter(places.values()))[0].strip()
    rows = [
        [places[step][2].strip(), *(_value(table.rows[step].values.get(column)) for column in columns)]
        for step in table.shown()
    ]
    return [[name, *columns], *rows]


def _value(value: float | None) -> str:
    return "" if value is None else value_text(value)


def _html_table(table: LogTable) -> str:
    rows, best = _cells(table), table.best()
    if not rows:
        return ""
    marked = [step == best and len(table.rows) > 1 for step in table.shown()]
    left_out = len(table.rows) - len(marked)
    head = "".join(f'<th style="text-align:right">{markup.escape(cell)}</th>' for cell in rows[0])
    body = "".join(_html_row(row, is_best) for row, is_best in zip(rows[1:], marked, strict=True))
    faint = '<div style="opacity:.65;font-size:90%">'
    note = f"{faint}{left_out} earlier row{'' if left_out == 1 else 's'} not shown</div>" if left_out else ""
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:4px 0"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{note}'


def _html_row(row: Sequence[str], is_best: bool) -> str:
    style = "text-align:right" + (";font-weight:600" if is_best else "")
    cells = "".join(f'<td style="{style}">{markup.escape(cell)}</td>' for cell in row)
    return f"<tr{' title=best' if is_best else ''}>{cells}</tr>"
