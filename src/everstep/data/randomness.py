"""Python's and NumPy's global random generators, borrowed for the time a user's generator runs."""

import random
from typing import Any

import numpy as np

from everstep.data import order


class BorrowedRandomness:
    """A private state of `random` and `np.random`, in place only inside its `with` block.

    A user's generator function may call `np.random.permutation` or `random.shuffle`. Run inside this block it
    draws the same numbers whenever the same epoch is replayed, whatever the rest of the program has drawn,
    and the rest of the program does not notice:

        randomness = BorrowedRandomness(seed=0, epoch=3)
        with randomness:
            batch = next(batches)

    Each entry continues where the last one stopped. Entering and leaving takes some 150 microseconds,
    nearly all of it NumPy's. Numbers that another thread draws meanwhile come from this state.
    """

    def __init__(self, seed: int, epoch: int):
        words = order.generator(seed, epoch).integers(2**32, size=16)
        self._own: tuple[Any, Any] = (
            random.Random(words.tobytes()).getstate(),
            np.random.RandomState(words).get_state(),
        )
        self._outer = self._own

    def __enter__(self) -> None:
        self._outer = _swap(self._own)

    def __exit__(self, *exception: object) -> None:
        self._own = _swap(self._outer)


def _swap(states: tuple[Any, Any]) -> tuple[Any, Any]:
    """Puts `states` in place and returns those that were."""
    replaced = random.getstate(), np.random.get_state()
    random.setstate(states[0])
    np.random.set_state(states[1])
    return replaced
