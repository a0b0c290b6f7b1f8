"""What a notebook shows of histories, runs, comparisons and reports: HTML without scripts, but for the report itself.

A notebook may be dark or bright: lines and numbers take their colour from it. What is not trusted there loses its
pictures and keeps its tables.
"""

import html as markup
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.errors import UsageError
from everstep.report.html_page import report_html
from everstep.report.numbers import finite, shown
from everstep.report.run_data import Curve, facts, headline, read_curves, read_record, steps_per_epoch
from everstep.report.split_data import read_pages
from everstep.tracking import SIDE_FIGURES, direction

_WIDTH, _HEIGHT = 330, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, _WIDTH - 8, 10, _HEIGHT - 24
_COLOURS = ("#2f6fb5", "#d9622b", "#3a9a5b", "#8a5cc2", "#c23b6b", "#6b7280", "#b59a1a", "#2aa3a3")
_MOST_CHARTS = 6
_FAINT = "opacity:.65;font-size:90%"

Line = tuple[str, str, Sequence[float], Sequence[float | None], bool]
"""Its name, its colour, where its points are, their values, whether it is dashed."""


def history_html(epochs: Sequence[int], history: Mapping[str, Sequence[Any]], directory: str = "") -> str:
    """Returns the curves of a History.

    Args:
      epochs: The epochs, counted from 0.
      history: The values by metric, as Keras names them.
      directory: The directory of the run; "" if it is not kept.
    """
    names = [name for name in history if not name.startswith("val_") and name not in SIDE_FIGURES]
    names.sort(key=lambda name: name != "loss")
    charts = [_chart(name, _of_history(name, epochs, history), "epoch") for name in names[:_MOST_CHARTS]]
    bests = [text for name in names[:_MOST_CHARTS] if (text := _best_of(name, epochs, history))]
    said = f"{len(epochs)} epoch{'' if len(epochs) == 1 else 's'}{''.join(f' · {text}' for text in bests)}"
    where = f'<div style="{_FAINT}">{_safe(directory)} · everstep.show_report({_safe(repr(directory))})</div>'
    return _boxed(f"<div>{_safe(said)}</div>", _side_by_side(charts), where if directory else "")


def run_html(directory: storage.PathLike) -> str:
    """Returns what a notebook shows of a run: its facts, its last values, its curves.

    Raises:
      UsageError: It is no run, or its record is damaged.
    """
    folder = Path(directory)
    record = read_record(folder)
    curves = read_curves(folder / "history.csv", record)
    figures = headline(record, [page for _, page in read_pages(folder / "reports")])
    values = [[figure.split, figure.name, shown(figure.value)] for figure in figures if figure.name not in SIDE_FIGURES]
    said = " · ".join(f"{one['name']} {one['value']}" for one in facts(record)[:5])
    each, unit = steps_per_epoch(curves, record), "step"
    if each:
        unit = "epoch"
    charts = [_chart(one.name, _of_run("", 0, one, each or 1), unit) for one in curves if not one.side][:_MOST_CHARTS]
    title = f"<div><b>{_safe(folder.resolve().name)}</b> · {_safe(said)}</div>"
    return _boxed(title, _table([["data", "metric", "value"], *values]) if values else "", _side_by_side(charts))


def comparison_html(comparison: Any) -> str:
    """Returns what a notebook shows of a `SideBySide`: its rows, the best in bold, and the curves.

    Args:
      comparison: The runs and the sections.
    """
    members = comparison.members
    rows: list[list[str]] = [["", *(member.name for member in members)]]
    bold = set()
    for section in ("metrics", "evaluations", "configuration", "course"):
        for row in comparison.shown_sections.get(section, []):
            bold |= {(len(rows), place + 1) for place in row.best}
            rows.append([row.key, *(_cell(value) for value in row.values)])
    curves = [read_curves(member.directory / "history.csv", member.record) for member in members]
    names = dict.fromkeys(one.name for found in curves for one in found if not one.side)
    charts = [_chart(name, _of_several(name, members, curves), "step") for name in list(names)[:_MOST_CHARTS]]
    return _boxed(_table(rows, bold), _side_by_side(charts))


class ReportView:
    """The report of one run, or of several side by side, as a notebook shows it: the whole page, in a frame.

    Args:
      run_dirs: The directories.
      height: The height of the frame in pixels.
    """

    def __init__(self, run_dirs: Sequence[Path], height: int) -> None:
        self._names = [str(path) for path in run_dirs]
        self._height = height
        self._page = report_html(run_dirs)

    def __repr__(self) -> str:
        return f"<report of {', '.join(self._names)}>"

    def _repr_html_(self) -> str:
        style = f"width:100%;height:{self._height}px;border:1px solid rgba(128,128,128,.3);border-radius:8px"
        return f'<iframe srcdoc="{markup.escape(self._page, quote=True)}" style="{style}" title="report"></iframe>'


def show_report(run_dirs: Sequence[storage.PathLike] | storage.PathLike, height: int = 720) -> ReportView:
    """Shows the report of a run in a notebook, or of several runs side by side, as the last line of a cell.

    The report is part of the saved notebook; no file is written. `everstep.report.write` writes one.

    Example:
        everstep.show_report("runs/mine")
        everstep.show_report(["runs/first", "runs/second"])

    Args:
      run_dirs: A run directory, or several; the others are compared with the first.
      height: The height in pixels.

    Returns:
      What the notebook shows.

    Raises:
      UsageError: A directory is not a run, or has nothing to show yet.
    """
    given = [run_dirs] if isinstance(run_dirs, str | Path) or hasattr(run_dirs, "__fspath__") else list(run_dirs)
    if not given:
        raise UsageError("a report needs at least one run", key="run_dirs", remedy="name its directory")
    return ReportView([Path(path) for path in given], height)


def _of_history(name: str, epochs: Sequence[int], history: Mapping[str, Sequence[Any]]) -> list[Line]:
    validation = f"val_{name}"
    found: list[Line] = []
    for curve, colour, label in ((name, _COLOURS[1], "train"), (validation, _COLOURS[0], "validation")):
        values = [finite(value) for value in history.get(curve, ())]
        places = [epoch + 1 for epoch in epochs] if len(values) == len(epochs) else list(range(1, len(values) + 1))
        if values:
            found.append((label, colour, places, values, curve == name and validation in history))
    return found


def _of_run(prefix: str, number: int, curve: Curve, steps: int, several: bool = False) -> list[Line]:
    return [
        (
            f"{prefix}{one.kind}",
            _COLOURS[number % len(_COLOURS)] if several else _COLOURS[1 if one.kind == "train" else 0],
            [step / steps for step in one.steps],
            one.values,
            one.kind == "train" and (several or len(curve.series) > 1),
        )
        for one in curve.series
    ]


def _of_several(name: str, members: Sequence[Any], curves: Sequence[Sequence[Curve]]) -> list[Line]:
    return [
        line
        for number, (member, found) in enumerate(zip(members, curves, strict=True))
        for one in found
        if one.name == name
        for line in _of_run(f"{member.name}, ", number, one, 1, several=True)
    ]


def _best_of(name: str, epochs: Sequence[int], history: Mapping[str, Sequence[Any]]) -> str:
    """Returns the best value of a metric, of validation where there is any: `best val_loss 0.31 in epoch 4`."""
    key = f"val_{name}" if f"val_{name}" in history else name
    better = direction(name)
    sign = -1 if better == "higher" else 1
    known = [(sign * value, place) for place, each in enumerate(history[key]) if (value := finite(each)) is not None]
    if better is None or not known:
        return ""
    value, place = min(known)
    epoch = epochs[place] + 1 if len(history[key]) == len(epochs) else None
    return f"best {key} {shown(sign * value)}{'' if epoch is None else f' in epoch {epoch}'}"


def _chart(title: str, lines: Sequence[Line], unit: str) -> str:
    """Returns a chart as SVG, with its title and its legend."""
    pairs = [pair for _, _, places, values, _ in lines for pair in zip(places, values, strict=False)]
    points = [(x, y) for x, y in pairs if y is not None]
    if not points:
        return ""
    x_low, x_high = min(x for x, _ in points), max(x for x, _ in points)
    y_low, y_high = min(y for _, y in points), max(y for _, y in points)
    drawn = "".join(_path(line, (x_low, x_high), (y_low, y_high)) for line in lines)
    axis = 'stroke="currentColor" stroke-opacity=".25"'
    text = 'fill="currentColor" fill-opacity=".7" font-size="11" font-family="system-ui,sans-serif"'
    frame = (
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}" {axis}/>'
        f'<line x1="{_LEFT}" x2="{_RIGHT}" y1="{_TOP}" y2="{_TOP}" {axis}/>'
        f'<text x="{_LEFT - 5}" y="{_BOTTOM + 4}" text-anchor="end" {text}>{shown(y_low, 3)}</text>'
        f'<text x="{_LEFT - 5}" y="{_TOP + 4}" text-anchor="end" {text}>{shown(y_high, 3)}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 8}" {text}>{unit} {shown(x_low, 3)}</text>'
        f'<text x="{_RIGHT}" y="{_HEIGHT - 8}" text-anchor="end" {text}>{shown(x_high, 6)}</text>'
    )
    label = markup.escape(f"{title} over {unit}s", quote=True)
    svg = (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" height="{_HEIGHT}" role="img" aria-label="{label}">'
        f"{frame}{drawn}</svg>"
    )
    legend = " ".join(_legend(name, colour, dashed) for name, colour, _, _, dashed in lines)
    return f'<div style="max-width:{_WIDTH}px"><b>{_safe(title)}</b><br>{svg}<div style="{_FAINT}">{legend}</div></div>'


def _legend(name: str, colour: str, dashed: bool) -> str:
    kind = "dashed" if dashed else "solid"
    line = f"display:inline-block;width:18px;border-top:2px {kind} {colour};vertical-align:middle;margin-right:5px"
    return f'<span style="white-space:nowrap;margin-right:10px"><span style="{line}"></span>{_safe(name)}</span>'


def _path(line: Line, x_range: tuple[float, float], y_range: tuple[float, float]) -> str:
    _, colour, places, values, dashed = line
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    path, is_open = "", False
    spots = []
    for place, value in zip(places, values, strict=False):
        if value is None:
            is_open = False
            continue
        x = _LEFT + 4 + _share(place, *x_range) * (_RIGHT - _LEFT - 8)
        y = _BOTTOM - 4 - _share(value, *y_range) * (_BOTTOM - _TOP - 8)
        path += f"{'L' if is_open else 'M'}{x:.1f} {y:.1f}"
        spots.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>')
        is_open = True
    dots = "".join(spots) if len(spots) <= 30 else ""
    return f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>{dots}'


def _share(value: float, low: float, high: float) -> float:
    span = high / 2 - low / 2  # halved: the difference of two floats may overflow
    return (value / 2 - low / 2) / span if span and math.isfinite(span) else 0.5


def _table(rows: Sequence[Sequence[str]], bold: set[tuple[int, int]] = frozenset()) -> str:  # type: ignore[assignment]
    """Returns a table, its header first.

    Args:
      rows: The cells.
      bold: The row and the column of each cell that is bold.
    """
    head = "".join(
        f'<th style="text-align:{"right" if place else "left"}">{_safe(cell)}</th>'
        for place, cell in enumerate(rows[0])
    )
    body = "".join(
        f"<tr>{''.join(_td(cell, place, (number, place) in bold) for place, cell in enumerate(row))}</tr>"
        for number, row in enumerate(rows[1:], start=1)
    )
    style = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:6px 0"
    return f'<table style="{style}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'


def _td(cell: str, place: int, is_bold: bool) -> str:
    style = f"text-align:{'right' if place else 'left'}{';font-weight:700' if is_bold else ''}"
    return f'<td style="{style}">{_safe(cell)}</td>'


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    return shown(value) if isinstance(value, int | float) and not isinstance(value, bool) else str(value)


def _side_by_side(charts: Sequence[str]) -> str:
    found = [chart for chart in charts if chart]
    return f'<div style="display:flex;flex-wrap:wrap;gap:18px;margin:8px 0">{"".join(found)}</div>' if found else ""


def _boxed(*parts: str) -> str:
    return f'<div class="everstep-view">{"".join(parts)}</div>'


def _safe(text: str) -> str:
    return markup.escape(str(text), quote=True)
