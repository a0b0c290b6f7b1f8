"""Draws results: bars with the interquartile range for comparisons, lines on logarithmic axes for growth."""

from pathlib import Path
from typing import Any

from benchmarks.results import OURS, Case, Results

_COLOURS = {OURS: "#d9480f"}
_OTHERS = ("#495057", "#868e96", "#adb5bd", "#1c7ed6", "#2f9e44", "#ae3ec9")


def draw(results: Results, path: Path) -> None:
    """Draws all cases into one file."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "everstep"  # the same file for the same results
    from matplotlib import pyplot

    curves: dict[str, list[Case]] = {}
    for case in results.cases:
        if case.series:
            curves.setdefault(case.series, []).append(case)
    plain = [case for case in results.cases if not case.series and case.values]
    memory = [case for case in results.cases if "samples" in case.notes]
    count = len(plain) + len(curves) + bool(memory)
    columns = min(3, max(1, count))
    rows = -(-count // columns) or 1
    figure, axes = pyplot.subplots(rows, columns, figsize=(4.6 * columns, 2.9 * rows), squeeze=False)
    places = iter(axes.flat)
    for case in plain:
        _bars(next(places), case)
    for name, points in curves.items():
        _lines(next(places), name, points)
    if memory:
        _memory(next(places), memory)
    for place in places:
        place.set_axis_off()
    machine = results.machine.get("accelerator") or results.machine.get("processor", "")
    figure.suptitle(f"{results.suite} · {machine} · {results.date}", fontsize=9)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _bars(axes: Any, case: Case) -> None:
    names = list(case.values)
    medians = [case.median(name) for name in names]
    colours = [_COLOURS.get(name, _OTHERS[index % len(_OTHERS)]) for index, name in enumerate(names)]
    axes.barh(names, medians, xerr=[case.spread(name) / 2 for name in names], color=colours)
    axes.invert_yaxis()
    axes.set_title(case.name, fontsize=9)
    axes.set_xlabel(case.unit, fontsize=8)
    axes.tick_params(labelsize=8)


def _lines(axes: Any, name: str, points: list[Case]) -> None:
    contenders = list(dict.fromkeys(one for case in points for one in case.values))
    for index, contender in enumerate(contenders):
        known = sorted((case.x or 0, case.median(contender)) for case in points if contender in case.values)
        colour = _COLOURS.get(contender, _OTHERS[index % len(_OTHERS)])
        axes.plot(*zip(*known, strict=True), marker="o", markersize=3, label=contender, color=colour)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_title(name, fontsize=9)
    axes.set_ylabel(points[0].unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7)


def _memory(axes: Any, cases: list[Case]) -> None:
    for index, case in enumerate(cases):
        seconds, sizes = zip(*case.notes["samples"], strict=True)
        colour = _COLOURS[OURS] if case.name.startswith(OURS) else _OTHERS[index % len(_OTHERS)]
        axes.plot([second / 60 for second in seconds], sizes, label=case.name, color=colour, linewidth=1)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes", fontsize=8)
    axes.set_ylabel("resident memory, MB", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=7)
