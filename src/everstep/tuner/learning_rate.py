"""The learning-rate range test: where the loss falls fastest, and where it diverges.

`trials.range_test` trains the steps; this file judges and draws their losses, and needs no Keras.
"""

import csv
import dataclasses
import importlib
import importlib.util
import io
import math

import numpy as np

from everstep.errors import missing_extra

_DIVERGED = 4.0  # times the best smoothed loss
_KEEP = 0.9  # of the running mean, with each new loss
_SPREAD = 1 / 20  # of the curve: the width of the smoothing
_NOISE = 6.0  # standard deviations of a mean of losses, from its highest to its lowest
_MIN_FALL = 0.01  # of the loss at the beginning
_BEGUN = 0.1  # of the fall: it begins where this share of it is behind for good


@dataclasses.dataclass
class RangeTest:
    """Losses at growing learning rates, step by step.

    Attributes:
      rates: The learning rate of each step.
      losses: The loss that the step began with.
      diverged: Whether the last loss shows that further steps are pointless.
    """

    rates: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    diverged: bool = False

    def __post_init__(self) -> None:
        self._mean, self._weight, self._best = 0.0, 0.0, math.inf

    def add(self, rate: float, loss: float) -> None:
        """Adds a step."""
        self.rates.append(rate)
        self.losses.append(loss)
        self._mean = _KEEP * self._mean + (1 - _KEEP) * loss
        self._weight = _KEEP * self._weight + (1 - _KEEP)
        smoothed = self._mean / self._weight
        self.diverged = not math.isfinite(smoothed) or (self._best > 0 and smoothed > _DIVERGED * self._best)
        self._best = min(self._best, smoothed)

    def smoothed(self) -> np.ndarray:
        """Returns the losses, each a mean of those around it; diverged ones are limited."""
        finite = [loss for loss in self.losses if math.isfinite(loss)]
        bound = max(finite[:1] + [_DIVERGED * self._best]) if finite else 0.0
        losses = np.nan_to_num(np.asarray(self.losses, np.float64), nan=bound, posinf=bound)
        return _gaussian_mean(np.minimum(losses, bound), self._spread())

    def _spread(self) -> float:
        return max(1.0, _SPREAD * len(self.losses))

    def steepest(self) -> int | None:
        """Returns the step at which the loss falls fastest, over the logarithm of the rate, on its way to the lowest.

        What happens before that way begins is noise: which samples are in which batch. None if the loss does not fall,
        or by less than a hundredth, or by no more than noise explains.
        """
        curve = self.smoothed()
        lowest = int(np.argmin(curve))
        if lowest == 0:
            return None
        before = float(np.median(curve[: (lowest + 1) // 2]))
        fall, noise = before - curve[lowest], float(np.std((np.asarray(self.losses) - curve)[:lowest]))
        noise *= _NOISE / math.sqrt(2 * math.sqrt(math.pi) * self._spread())
        if fall <= max(_MIN_FALL * abs(before), noise):
            return None
        still_up = np.nonzero(curve[:lowest] >= before - _BEGUN * fall)[0]
        begin = int(still_up[-1]) if len(still_up) else 0
        return begin + int(np.argmin(np.gradient(curve)[begin : lowest + 1]))

    def table(self) -> str:
        """Returns every step as CSV."""
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["step", "learning_rate", "loss", "smoothed"])
        for step, row in enumerate(zip(self.rates, self.losses, self.smoothed(), strict=True)):
            writer.writerow([step, *(f"{number:.6g}" for number in row)])
        return out.getvalue()


def geometric(first: float, last: float, steps: int) -> list[float]:
    """Returns learning rates from the first to the last, each the same factor above the one before."""
    return [first * (last / first) ** (step / (steps - 1)) for step in range(steps)]


def _gaussian_mean(values: np.ndarray, spread: float) -> np.ndarray:
    places = np.arange(len(values))
    weights = np.exp(-0.5 * ((places[:, None] - places[None, :]) / spread) ** 2)
    return np.asarray(weights @ values / weights.sum(axis=1))


def rounded(rate: float) -> float:
    """Returns a rate in two digits; the test is not more precise."""
    return float(f"{rate:.1e}")


def require_matplotlib() -> None:
    """Checks that a picture can be drawn.

    Raises:
      UsageError: matplotlib is not installed.
    """
    if importlib.util.find_spec("matplotlib") is None:
        raise missing_extra("matplotlib", "plot", "a picture of the learning rates (--out NAME.csv does without)")


def draw(test: RangeTest, title: str, form: str) -> bytes:
    """Returns a picture of the losses over the learning rate, and of where they fall fastest.

    matplotlib's global state is not touched: no display is needed, no figure stays open.

    Args:
      test: The losses.
      title: The title of the picture.
      form: `png` or `svg`.
    """
    figure = importlib.import_module("matplotlib.figure").Figure(figsize=(8, 4.5), layout="constrained")
    axes, curve = figure.subplots(), test.smoothed()
    axes.plot(test.rates, test.losses, color="0.75", linewidth=1, label="each step")
    axes.plot(test.rates, curve, color="C0", linewidth=2, label="smoothed")
    if (steepest := test.steepest()) is not None:
        rate = test.rates[steepest]
        axes.plot([rate], [curve[steepest]], "o", color="C3", markersize=8, label=f"steepest: {rate:.1e}")
    low, high = float(curve.min()), float(curve.max())
    margin = 0.1 * (high - low) or 1.0
    axes.set_xscale("log")
    axes.set_ylim(low - margin, high + margin)  # all of the smoothed curve; single steps may be outside
    axes.set_xlabel("learning rate")
    axes.set_ylabel("training loss")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    held = io.BytesIO()
    figure.savefig(held, format=form, dpi=110)
    return held.getvalue()
