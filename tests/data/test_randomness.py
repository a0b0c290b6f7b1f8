"""The global random generators while threads read sources that draw from them."""

import threading
import time

import numpy as np
import pytest

from everstep.data import randomness
from everstep.data.iterables import IterableStream
from everstep.loop import random_state


def drawing():
    for _ in range(30):
        first = np.random.rand(2)
        time.sleep(0.0005)  # lets another thread run
        yield np.concatenate([first, np.random.rand(2)])


def test_concurrent_sources_draw_the_same_as_alone():
    alone = [np.stack(list(IterableStream(drawing, seed=seed))) for seed in (0, 1)]
    found = {}

    def read(seed):
        found[seed] = np.stack(list(IterableStream(drawing, seed=seed)))

    before = np.random.get_state(legacy=False)["state"]["key"].copy()
    threads = [threading.Thread(target=read, args=(seed,)) for seed in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    np.testing.assert_array_equal(found[0], alone[0])
    np.testing.assert_array_equal(found[1], alone[1])
    np.testing.assert_array_equal(np.random.get_state(legacy=False)["state"]["key"], before)


@pytest.mark.parametrize("inside", [False, True])
def test_the_random_state_of_the_program_does_not_include_borrowed_states(inside):
    """Also while a source draws, or hangs."""
    before = random_state.get()
    borrowed = randomness.BorrowedRandomness(0, 0)
    if inside:
        with borrowed:
            np.random.rand(5)
            assert random_state.get() == before
    assert random_state.get() == before
