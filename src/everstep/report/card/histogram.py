"""A histogram as SVG: inside the page it takes the page's colours, as a file of its own it has some."""

import html
import math
from collections.abc import Sequence

from everstep.report.numbers import shown

WIDTH, HEIGHT = 360, 150
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, WIDTH - 10, 10, HEIGHT - 26
_FONT = 'font-family="system-ui, sans-serif" font-size="11"'


def histogram(edges: Sequence[float], counts: Sequence[int], mean: float | None, label: str) -> str:
    """Returns the drawing; attributes say how it looks where no style sheet does.

    Args:
      edges: Of the bins: one more than there are counts.
      counts: How many samples are in each.
      mean: Where to draw a line; None for none.
      label: What it shows, for those who do not see it.
    """
    low, high, most = edges[0], edges[-1], max(1, *counts)
    parts = [*_grid(most), *_names(low, high), *_bars(counts, most)]
    if mean is not None and low < high:
        x = _spell(_LEFT + _share(mean, low, high) * (_RIGHT - _LEFT))
        parts.append(
            f'<line class="mean" stroke="#d2600f" stroke-width="1.6" stroke-dasharray="4 3" x1="{x}" x2="{x}" '
            f'y1="{_TOP}" y2="{_BOTTOM}"/>'
        )
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}"'
    return f'{head} role="img" aria-label="{html.escape(label)}">\n' + "\n".join(parts) + "\n</svg>\n"


def ticks(low: float, high: float, wanted: int) -> list[float]:
    """Returns round numbers from low to high, about as many as wanted."""
    rough = high / wanted - low / wanted
    if not (0 < rough < math.inf):
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9)), 0.0)
    if not 0 < step < math.inf or low + step == low:
        return [low, high]
    first = math.ceil(low / step - 1e-9)
    return [float(f"{(first + i) * step:.12g}") for i in range(wanted + 2) if (first + i) * step <= high + step * 1e-9]


def _bars(counts: Sequence[int], most: int) -> list[str]:
    wide = (_RIGHT - _LEFT) / len(counts)
    return [
        f'<rect class="bar" fill="#2458d3" fill-opacity="0.75" x="{_spell(_LEFT + i * wide + 0.4)}" '
        f'width="{_spell(wide - 0.8)}" y="{_spell(_BOTTOM - _height(count, most))}" '
        f'height="{_spell(_height(count, most))}"/>'
        for i, count in enumerate(counts)
        if count
    ]


def _height(count: int, most: int) -> float:
    return max(1.5, count / most * (_BOTTOM - _TOP))


def _grid(most: int) -> list[str]:
    whole = [round(value) for value in ticks(0, most, 3) if value == round(value)]
    rows = [(value, _spell(_BOTTOM - value / most * (_BOTTOM - _TOP))) for value in whole]
    lines = [
        f'<line class="grid" stroke="#8894a5" stroke-opacity="0.3" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>'
        for _, y in rows
    ]
    names = [_text(_LEFT - 6, float(y) + 4, "end", shown(value)) for value, y in rows]
    return [*lines, *names]


def _names(low: float, high: float) -> list[str]:
    places = [(value, _share(value, low, high)) for value in ticks(low, high, 4)]
    return [
        _text(_LEFT + share * (_RIGHT - _LEFT), _BOTTOM + 17, _anchor(share), shown(value, 3))
        for value, share in places
    ]


def _anchor(share: float) -> str:
    return "end" if share > 0.94 else "start" if share < 0.03 else "middle"


def _text(x: float, y: float, anchor: str, text: str) -> str:
    place = f'x="{_spell(x)}" y="{_spell(y)}" text-anchor="{anchor}"'
    return f'<text class="axis" fill="#6b7687" {_FONT} {place}>{text}</text>'


def _share(value: float, low: float, high: float) -> float:
    span = high / 2 - low / 2  # by halves: the distance of two floats may be none
    return (value / 2 - low / 2) / span if span else 0.5


def _spell(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
