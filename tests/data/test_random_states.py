"""The states of the global random generators, copied as bytes and through Python's and NumPy's own functions."""

import random

import numpy as np
import pytest

from everstep.data import random_states, randomness

WORDS = np.arange(16)


@pytest.fixture(params=["memory", "functions"], autouse=True)
def way(request, monkeypatch):
    before = random.getstate(), np.random.get_state()
    if request.param == "functions":
        monkeypatch.setattr(random_states, "_is_memory_known", lambda: False)
    yield request.param
    random.setstate(before[0])
    np.random.set_state(before[1])


def drawn():
    return random.random(), random.gauss(0, 1), np.random.standard_normal(), np.random.rand(3).tolist()


def test_the_memory_of_both_generators_is_known_here(way):
    random_states.get()
    assert random_states._are_usual() == (way == "memory")


def test_seeded_states_are_those_of_seed():
    random.seed(WORDS.tobytes())
    np.random.seed(WORDS)
    expected = drawn()
    random_states.put(random_states.seeded(WORDS))
    assert drawn() == expected


@pytest.mark.parametrize("normals", [0, 1, 2])
def test_states_that_are_put_back_continue(normals):
    """Also if one of two normal numbers that are drawn at once is left over."""
    random_states.put(random_states.seeded(WORDS))
    for _ in range(normals):
        np.random.standard_normal()
        random.gauss(0, 1)
    here = random_states.get()
    expected = [drawn() for _ in range(700)]  # past the end of the generators' words
    random_states.put(here)
    assert random_states.get().differ_from(here) is False
    assert [drawn() for _ in range(700)] == expected
    assert random_states.get().differ_from(here) is True


@pytest.mark.parametrize("normals", [0, 1])
def test_reading_the_states_draws_nothing(normals):
    def alone():
        random_states.put(random_states.seeded(WORDS))
        for _ in range(normals):
            np.random.standard_normal()
        return drawn()

    random_states.put(random_states.seeded(WORDS))
    for _ in range(normals):
        np.random.standard_normal()
    python, numpy = random_states.get().for_people()
    assert python == random.getstate()
    own = np.random.get_state(legacy=False)
    np.testing.assert_array_equal(numpy["state"].pop("key"), own["state"].pop("key"))
    assert numpy == own
    assert drawn() == alone()


def test_a_generator_of_another_kind_is_read():
    usual = np.random.get_bit_generator()
    np.random.set_bit_generator(np.random.Philox(1))
    try:
        here = random_states.get()
        first = np.random.rand()
        assert random_states.get().differ_from(here)
        random_states.put(here)
        assert np.random.rand() == first
    finally:
        np.random.set_bit_generator(usual)


def test_what_a_batch_draws_follows_from_its_numbers():
    """The numbers are part of results: runs from before draw the same."""
    with randomness.for_batch(3, 4, 5):
        found = random.random(), np.random.rand()
    words = randomness.generator(randomness.seed_of(3, 5), 4).integers(2**32, size=16)
    assert found == (random.Random(words.tobytes()).random(), np.random.RandomState(words).rand())
