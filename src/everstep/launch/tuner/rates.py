"""What a range of learning rates says: where the loss falls fastest, and from where on it diverges."""

import csv
import dataclasses
import io
import math

import numpy as np

_DIVERGED = 4.0  # so many times the best smoothed loss
_KEEP = 0.9  # of the running mean, at each further loss
_SPREAD = 1 / 20  # of the curve: how far a smoothed loss looks to both sides
_BY_CHANCE = 6.0  # standard deviations of a mean of losses, from its highest to its lowest
_LEAST_FALL = 0.01  # of the loss at the beginning
_BEGUN = 0.1  # of the fall: when so much of it is done for good, it has begun


@dataclasses.dataclass
class RangeTest:
    """Losses at growing learning rates, step by step.

    Attributes:
      rates: The learning rate of each step.
      losses: The loss that the step began with.
      diverged: Whether the last of them says that there is no use in going on.
    """

    rates: list[float] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    diverged: bool = False

    def __post_init__(self) -> None:
        self._mean, self._weight, self._best = 0.0, 0.0, math.inf

    def add(self, rate: float, loss: float) -> None:
        """Takes in a step."""
        self.rates.append(rate)
        self.losses.append(loss)
        self._mean = _KEEP * self._mean + (1 - _KEEP) * loss
        self._weight = _KEEP * self._weight + (1 - _KEEP)
        smoothed = self._mean / self._weight
        self.diverged = not math.isfinite(smoothed) or (self._best > 0 and smoothed > _DIVERGED * self._best)
        self._best = min(self._best, smoothed)

    def smoothed(self) -> np.ndarray:
        """Returns the losses, each a mean of those around it; what has diverged counts as no more than the bound."""
        finite = [loss for loss in self.losses if math.isfinite(loss)]
        bound = max(finite[:1] + [_DIVERGED * self._best]) if finite else 0.0
        losses = np.nan_to_num(np.asarray(self.losses, np.float64), nan=bound, posinf=bound)
        return _gaussian_mean(np.minimum(losses, bound), self._spread())

    def _spread(self) -> float:
        return max(1.0, _SPREAD * len(self.losses))

    def steepest(self) -> int | None:
        """Returns the step at which the loss falls fastest, by the logarithm of the rate, on its way to the lowest.

        What it does before that way begins is chance: which samples are in which batch. None where it does not fall: by
        less than a hundredth, or no more than chance may make a mean of so many losses fall.
        """
        curve = self.smoothed()
        lowest = int(np.argmin(curve))
        if lowest == 0:
            return None
        before = float(np.median(curve[: (lowest + 1) // 2]))
        fall, chance = before - curve[lowest], float(np.std((np.asarray(self.losses) - curve)[:lowest]))
        chance *= _BY_CHANCE / math.sqrt(2 * math.sqrt(math.pi) * self._spread())
        if fall <= max(_LEAST_FALL * abs(before), chance):
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


def geometric(least: float, most: float, steps: int) -> list[float]:
    """Returns learning rates from the least to the most, each the same factor above the one before."""
    return [least * (most / least) ** (step / (steps - 1)) for step in range(steps)]


def _gaussian_mean(values: np.ndarray, spread: float) -> np.ndarray:
    places = np.arange(len(values))
    weights = np.exp(-0.5 * ((places[:, None] - places[None, :]) / spread) ** 2)
    return np.asarray(weights @ values / weights.sum(axis=1))


def rounded(rate: float) -> float:
    """Returns a rate in two digits: more would say what nobody knows."""
    return float(f"{rate:.1e}")
