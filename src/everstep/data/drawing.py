"""Random numbers for code that computes a batch by its number: the same whenever and wherever that is done.

A source that is read by index does not read what lies before its place. What its code draws from `random` and
`np.random` must then follow from the batch, not from the batches before.
"""

import random
from typing import Any

import numpy as np

from everstep.data.randomness import BorrowedRandomness

_HOOKS = 2**48  # above the number of any batch


def seed_of(seed: int, batch: int) -> int:
    """Returns the seed of what a number stands for: a batch, or a function at the border of an epoch."""
    return int(np.random.SeedSequence([seed % 2**64, batch]).generate_state(1, np.uint64)[0])


def for_batch(seed: int, epoch: int, batch: int) -> BorrowedRandomness:
    """Returns the block in which a batch is computed."""
    return BorrowedRandomness(seed_of(seed, batch), epoch)


def for_hook(seed: int, epoch: int, number: int) -> BorrowedRandomness:
    """Returns the block in which a function at an epoch's border runs; several such have numbers of their own."""
    return BorrowedRandomness(seed_of(seed, _HOOKS + number), epoch)


class Drawn:
    """Tells whether code inside its `with` block drew from `random` or `np.random`.

    drawn = Drawn()
    with drawn:
        batch = dataset[0]
    print(drawn.any)
    """

    def __init__(self) -> None:
        self.any = False

    def __enter__(self) -> None:
        self._before = _states()

    def __exit__(self, *exception: object) -> None:
        self.any = _states() != self._before


def _states() -> tuple[object, ...]:
    state: Any = np.random.get_state()
    return random.getstate(), state[1].tobytes(), state[2:]
