"""The picture of a range test: the loss over the learning rate."""

import importlib
import importlib.util
import io

import numpy as np

from everstep.errors import missing_extra
from everstep.launch.tuner.rates import RangeTest


def require_matplotlib() -> None:
    """Refuses to draw where nobody can.

    Raises:
      UsageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra("matplotlib", "plot", "a picture of the learning rates (--out NAME.csv does without)")


def draw(test: RangeTest, title: str, form: str) -> bytes:
    """Returns the losses over the learning rate, and where they fall fastest.

    Nothing of matplotlib's global state is touched: no display is needed, no figure stays open.

    Args:
      test: The losses.
      title: What was tried.
      form: `png` or `svg`.
    """
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 4.5), layout="constrained")
    axes, curve = figure.subplots(), test.smoothed()
    axes.plot(test.rates, test.losses, color="0.75", linewidth=1, label="each step")
    axes.plot(test.rates, curve, color="C0", linewidth=2, label="smoothed")
    if (steepest := test.steepest()) is not None:
        rate = test.rates[steepest]
        axes.plot([rate], [curve[steepest]], "o", color="C3", markersize=8, label=f"steepest: {rate:.1e}")
    axes.set_xscale("log")
    axes.set_ylim(*_bounds(curve))
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    held = io.BytesIO()
    figure.savefig(held, format=form, dpi=110)
    return held.getvalue()


def _bounds(curve: np.ndarray) -> tuple[float, float]:
    """Returns what to show of the losses: all of the smoothed curve; single steps may lie outside."""
    low, high = float(curve.min()), float(curve.max())
    room = 0.1 * (high - low) or 1.0
    return low - room, high + room
