"""Python's and NumPy's global random generators, borrowed for the time a user's generator runs."""

import random
import threading
from typing import Any

import numpy as np

from everstep.data import order
from everstep.errors import TrainingError

_one_at_a_time = threading.RLock()  # a source may itself read from another one
_changing = threading.Lock()  # held while states change places
_borrowers: list["BorrowedRandomness"] = []  # those inside their blocks, from the outermost on


class BorrowedRandomness:
    """A private state of `random` and `np.random`, in place only inside its `with` block.

    A user's generator function may call `np.random.permutation` or `random.shuffle`. Run inside this block it
    draws the same numbers whenever the same epoch is replayed, whatever the rest of the program has drawn,
    and the rest of the program does not notice:

        randomness = BorrowedRandomness(seed=0, epoch=3)
        with randomness:
            batch = next(batches)

    Each entry continues where the last one stopped. Entering and leaving takes some 150 microseconds,
    nearly all of it NumPy's. One block runs at a time: training and validation data are read by threads of their own.
    Numbers that another thread draws meanwhile, outside any block, come from this state.
    """

    def __init__(self, seed: int, epoch: int):
        words = order.generator(seed, epoch).integers(2**32, size=16)
        self._own: tuple[Any, Any] = (
            random.Random(words.tobytes()).getstate(),
            np.random.RandomState(words).get_state(legacy=False),
        )
        self._outer = self._own
        self._taken_back = False

    def __enter__(self) -> None:
        if self._taken_back:
            raise TrainingError("this data source was given up while it was being read; it cannot be read on")
        _one_at_a_time.acquire()
        try:
            with _changing:
                self._outer = _swap(self._own)
                _borrowers.append(self)
        except BaseException:
            _one_at_a_time.release()
            raise

    def __exit__(self, *exception: object) -> None:
        try:
            with _changing:
                if not self._taken_back:
                    _borrowers.remove(self)
                    self._own = _swap(self._outer)
        finally:
            _one_at_a_time.release()


def outside() -> tuple[Any, Any]:
    """Returns the states of `random` and `np.random` as the rest of the program knows them."""
    with _changing:
        return _borrowers[0]._outer if _borrowers else _current()


def take_back() -> None:
    """Puts back what was lent to a source that does not come back; that one is given up, and cannot be read on."""
    with _changing:
        if _borrowers:
            _swap(_borrowers[0]._outer)
        for borrower in _borrowers:
            borrower._taken_back = True
        _borrowers.clear()


def _current() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state(legacy=False)


def _swap(states: tuple[Any, Any]) -> tuple[Any, Any]:
    """Puts `states` in place and returns those that were."""
    replaced = _current()
    random.setstate(states[0])
    np.random.set_state(states[1])
    return replaced
