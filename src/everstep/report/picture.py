"""The learning curves of several runs in one picture: a panel for each metric, a colour for each run."""

import importlib
import importlib.util
import io
import math
from collections.abc import Sequence
from typing import Any

from everstep.errors import UsageError, missing_extra
from everstep.report.side_by_side import Member, telling

FORMATS = (".png", ".svg", ".pdf")
MOST_PANELS = 8
_COLOURS = ("#2f6fb5", "#d9622b", "#3a9a5b", "#8a5cc2", "#c23b6b", "#6b7280", "#b59a1a", "#2aa3a3")
_GREY = "#6b7280"
_LOOKS: dict[str, dict[str, Any]] = {
    "train": {"linestyle": "--", "alpha": 0.55, "linewidth": 1.1},
    "validation": {"linewidth": 1.8},
}


def can_draw() -> bool:
    """Tells whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def draw(members: Sequence[Member], suffix: str = ".png") -> bytes:
    """Returns the picture: validation in solid lines, training pale and dashed, over the steps.

    Nothing of matplotlib's global state is touched: no display is needed, no figure stays open.

    Args:
      members: The runs.
      suffix: `.png`, `.svg` or `.pdf`.

    Raises:
      UsageError: matplotlib is not installed, or no run has any curve.
    """
    if not can_draw():
        raise missing_extra("matplotlib", "plot", "a picture of curves")
    names = _metrics(members)
    if not names:
        raise UsageError("a picture of curves: none of the runs has a history to draw; train them first")
    columns = min(2, len(names))
    rows = math.ceil(len(names) / columns)
    figure_class = importlib.import_module("matplotlib.figure").Figure
    figure = figure_class(figsize=(5.2 * columns, 3.1 * rows + 0.5), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes, name in zip(panels, names, strict=False):
        _panel(axes, name, members)
    for axes in panels[len(names) :]:
        axes.set_axis_off()
    _legend(figure, members)
    held = io.BytesIO()
    figure.savefig(held, format=suffix.removeprefix("."), dpi=130, metadata=_undated(suffix))
    return held.getvalue()


def _metrics(members: Sequence[Member]) -> list[str]:
    """Returns what to draw, the loss first, then whatever was validated."""
    keys = telling(key for member in members for key in member.points)
    return sorted(dict.fromkeys(name for name, _ in keys), key=lambda name: name != "loss")[:MOST_PANELS]


def _panel(axes: Any, name: str, members: Sequence[Member]) -> None:
    for number, member in enumerate(members):
        colour = _COLOURS[number % len(_COLOURS)]
        for kind, look in _LOOKS.items():
            if points := member.points.get((name, kind)):
                marker = "o" if len(points) < 2 else None  # a line needs two
                axes.plot(*zip(*points, strict=True), color=colour, marker=marker, **look)
    axes.set_title(_literal(name), loc="left", fontsize=10, fontweight="bold")
    axes.set_xlabel("step", fontsize=8, color=_GREY)
    axes.tick_params(labelsize=8, colors=_GREY)
    axes.grid(True, color="#e5e7eb", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#d1d5db")


def _legend(figure: Any, members: Sequence[Member]) -> None:
    line = importlib.import_module("matplotlib.lines").Line2D
    colours = [line([], [], color=_COLOURS[n % len(_COLOURS)], linewidth=2) for n, _ in enumerate(members)]
    kinds = [line([], [], color=_GREY, linewidth=1.8), line([], [], color=_GREY, linestyle="--", linewidth=1.1)]
    labels = [*(_literal(member.name) for member in members), "validation", "training"]
    figure.legend([*colours, *kinds], labels, loc="outside lower center", ncols=min(len(labels), 6), frameon=False)


def _literal(text: str) -> str:
    """Returns a name that matplotlib takes for no formula."""
    return text.replace("$", r"\$")


def _undated(suffix: str) -> dict[str, None]:
    """Leaves the date out, so that the same runs give the same bytes."""
    return {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(suffix, {})
