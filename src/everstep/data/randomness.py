"""Random numbers of data sources: everything drawn for an epoch is a function of (seed, epoch).

`generator` is a counter-based generator with both numbers as its key. It needs no history: the order of epoch 1000
costs as much as that of epoch 0, and a resumed run finds it from two integers. The order depends only on the data, not
on backend, thread count or machine.

A user's code may draw from Python's and NumPy's global generators instead. `BorrowedRandomness` sets their states while
that code runs. A source that is read by index does not read what comes before its position, so what its code draws
follows from the batch's number: `for_batch`, `for_hook`.
"""

import threading
from typing import Any

import numpy as np

from everstep.data import random_states
from everstep.data.random_states import States
from everstep.errors import TrainingError

_WORD = 2**64


def generator(seed: int, epoch: int) -> np.random.Generator:
    """Returns the generator of one epoch: `np.random.Generator(np.random.Philox(key=[seed, epoch]))`.

    Example: `generator(seed, epoch).permutation(num_samples)` is the order of a shuffled epoch.
    Negative seeds count from the top of the 64-bit range.
    """
    key = np.array([seed % _WORD, epoch % _WORD], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key))


_one_at_a_time = threading.RLock()  # a source may itself read from another one
_changing = threading.Lock()  # held while states are swapped
_borrowers: list["BorrowedRandomness"] = []  # those inside their blocks, the outermost first


class BorrowedRandomness:
    """A private state of `random` and `np.random`, in place only inside its `with` block.

    A user's generator function may call `np.random.permutation` or `random.shuffle`. Inside this block it draws the
    same numbers whenever the same epoch is replayed. The rest of the program neither affects nor notices it:

        randomness = BorrowedRandomness(seed=0, epoch=3)
        with randomness:
            batch = next(batches)

    Each block continues where the previous one stopped. Entering and leaving takes some ten microseconds. One block
    runs at a time: training and validation data are read by separate threads. Numbers that another thread draws
    meanwhile, outside any block, come from this state.
    """

    def __init__(self, seed: int, epoch: int):
        words = generator(seed, epoch).integers(2**32, size=16)
        self._own = random_states.seeded(words)
        self._outer = self._own
        self._taken_back = False

    def __enter__(self) -> None:
        if self._taken_back:
            raise TrainingError("this data source was abandoned while it was being read and cannot be read again")
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
    """Returns the states of `random` and `np.random` for the rest of the program, outside of any block.

    They are what `random.getstate()` and `np.random.get_state(legacy=False)` return there.
    """
    with _changing:
        return (_borrowers[0]._outer if _borrowers else random_states.get()).for_people()


def take_back() -> None:
    """Restores the states that an abandoned source still borrows; that source cannot be read any more."""
    with _changing:
        if _borrowers:
            _swap(_borrowers[0]._outer)
        for borrower in _borrowers:
            borrower._taken_back = True
        _borrowers.clear()


def _swap(states: States) -> States:
    """Sets the states and returns the previous ones."""
    replaced = random_states.get()
    random_states.put(states)
    return replaced


_HOOKS = 2**48  # above the number of any batch


def seed_of(seed: int, batch: int) -> int:
    """Returns the seed of a batch, or of a hook, which has a number above all batches."""
    return int(np.random.SeedSequence([seed % 2**64, batch]).generate_state(1, np.uint64)[0])


def for_batch(seed: int, epoch: int, batch: int) -> BorrowedRandomness:
    """Returns the random state in which a batch is computed."""
    return BorrowedRandomness(seed_of(seed, batch), epoch)


def for_hook(seed: int, epoch: int, number: int) -> BorrowedRandomness:
    """Returns the random state in which a hook at the start or end of an epoch runs; each hook has its own number."""
    return BorrowedRandomness(seed_of(seed, _HOOKS + number), epoch)


class DrawDetector:
    """Detects whether the code in its `with` block draws from `random` or `np.random`.

    drawn = DrawDetector()
    with drawn:
        batch = dataset[0]
    print(drawn.any)
    """

    def __init__(self) -> None:
        self.any = False

    def __enter__(self) -> None:
        self._before = random_states.get()

    def __exit__(self, *exception: object) -> None:
        self.any = random_states.get().differ_from(self._before)
