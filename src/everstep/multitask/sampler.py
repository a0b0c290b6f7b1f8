"""Which task a step trains: a function of seed and step alone, so that a resumed run draws the same."""

from collections.abc import Callable, Sequence

import numpy as np

from everstep.data import order

_AT_ONCE = 1024  # steps whose numbers are drawn together


class TaskSampler:
    """Draws tasks with probability `weight ** exponent(step)`, divided by the sum of those.

        sampler = TaskSampler([3.0, 1.0], lambda step: 1.0, seed=0)
        sampler.draw(17)  # 0 in three of four steps, else 1

    Args:
      weights: One above 0 for each task.
      exponent: Returns the power for a step.
      seed: With the step, decides the draw.
    """

    def __init__(self, weights: Sequence[float], exponent: Callable[[int], float], seed: int) -> None:
        self._weights = np.array(weights, np.float64)
        self._exponent, self._seed = exponent, seed
        self._drawn: tuple[int, np.ndarray] | None = None

    def probabilities(self, step: int) -> np.ndarray:
        """Returns the probability of each task at a step."""
        powers = (self._weights / self._weights.max()) ** self._exponent(step)
        return powers / powers.sum()

    def draw(self, step: int) -> int:
        """Returns the index of the task that a step trains."""
        upper = np.cumsum(self.probabilities(step))[:-1]
        return int(np.searchsorted(upper, self._number(step), side="right"))

    def _number(self, step: int) -> float:
        """Returns the step's number from 0 to below 1."""
        piece, index = divmod(step, _AT_ONCE)
        if self._drawn is None or self._drawn[0] != piece:
            # Keys from the top: those from 0 on belong to the orders of the epochs.
            self._drawn = piece, order.generator(self._seed, -1 - piece).random(_AT_ONCE)
        return float(self._drawn[1][index])
