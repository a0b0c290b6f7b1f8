"""The histograms of a card: one for each metric and each set of data."""

import dataclasses
import re

from everstep.report.card.content import Card
from everstep.report.card.histogram import histogram
from everstep.report.card.measured import Metric
from everstep.report.numbers import shown


@dataclasses.dataclass(frozen=True)
class Drawing:
    """One histogram.

    Attributes:
      name: The metric's.
      split: On which data.
      file: The name of its file.
      svg: The drawing.
      reading: What it shows, in words.
    """

    name: str
    split: str
    file: str
    svg: str
    reading: str


def drawings(card: Card) -> list[Drawing]:
    """Returns the histograms, metric by metric; those of one metric stand side by side."""
    longest = max((len(one.metrics) for one in card.measured), default=0)
    places = [(place, one) for place in range(longest) for one in card.measured if place < len(one.metrics)]
    return [_drawing(one.metrics[place], one.split, place + 1) for place, one in places]


def _drawing(metric: Metric, split: str, number: int) -> Drawing:
    low, high = shown(metric.edges[0], 3), shown(metric.edges[-1], 3)
    reading = f"{low} to {high}, mean {shown(metric.mean)}" if metric.count else "no sample has a number"
    if metric.count and max(metric.counts) == metric.count and metric.mean == (metric.edges[0] + metric.edges[-1]) / 2:
        reading = f"always {shown(metric.mean)}"  # the borders are room around the one value
    svg = histogram(metric.edges, metric.counts, metric.mean, f"Distribution of {metric.name}, {split}: {reading}")
    name = re.sub(r"[^a-z0-9]+", "-", metric.name.lower()).strip("-")[:40]
    return Drawing(metric.name, split, f"{split}-{number}{f'-{name}' if name else ''}.svg", svg, reading)
