"""Generators and iterables: read once or again, with the global random generators set per epoch."""

import random

import numpy as np
import pytest

from everstep.data import IterableStream
from everstep.testing.problems import raises_problem

BATCHES = [np.array([1, 2]), np.array([3, 4])]


def test_a_one_shot_iterator_is_read_once():
    stream = IterableStream(iter(BATCHES))
    stream.restore({"epoch": 0, "batch": 0})
    assert stream.peek().tolist() == [1, 2]
    assert [batch.tolist() for batch in stream] == [[1, 2], [3, 4]]
    assert stream.block(1) is None
    stream.restore({"epoch": 0, "batch": 2})
    assert next(stream, None) is None


def test_a_one_shot_iterator_cannot_repeat():
    with raises_problem(reason="one-shot generator .*cannot repeat", remedy="pass the function"):
        IterableStream((batch for batch in BATCHES), repeat=True)


@pytest.mark.parametrize("position", [0, 1])
def test_a_one_shot_iterator_cannot_go_back(position):
    stream = IterableStream(iter(BATCHES))
    list(stream)
    stream.restore({"epoch": 0, "batch": position})
    with raises_problem(reason="cannot go back or resume"):
        next(stream)


def test_a_one_shot_iterator_cannot_resume():
    stream = IterableStream(iter(BATCHES))
    stream.restore({"epoch": 0, "batch": 1})
    with raises_problem(reason="cannot go back or resume"):
        next(stream)


def test_only_sequences_have_a_known_length():
    assert IterableStream(BATCHES).batches_per_epoch == 2
    assert IterableStream([1, 2, 3], batch_size=2).batches_per_epoch == 2
    assert IterableStream(lambda: BATCHES).batches_per_epoch is None


def test_samples_are_stacked():
    stream = IterableStream([({"x": [1.0, 2.0]}, 1)] * 3, batch_size=2)
    x, y = next(stream)
    assert [column.tolist() for column in x["x"]] == [[1.0, 1.0], [2.0, 2.0]]
    assert y.tolist() == [1, 1]
    assert next(stream)[1].tolist() == [1]


def test_single_values_are_refused():
    with raises_problem(received=5, reason=r"not a single value at \[1\]"):
        next(IterableStream([(np.zeros(3), 5)]))


def test_batch_size_must_be_positive():
    with raises_problem(key="batch_size", received=0):
        IterableStream(BATCHES, batch_size=0)


def test_data_that_became_shorter_is_detected():
    stream = IterableStream(lambda: BATCHES, repeat=True)
    stream.restore({"epoch": 0, "batch": 3})
    with raises_problem(reason="data ends before it"):
        next(stream)


def noise():
    for _ in range(3):
        yield np.array([random.random(), np.random.random()])


def test_global_generators_follow_seed_and_epoch():
    outer = random.getstate(), np.random.get_state()[1].copy()
    stream = IterableStream(noise, repeat=True, seed=3)
    straight = [next(stream).tolist() for _ in range(6)]
    assert len({tuple(batch) for batch in straight}) == 6
    random.random()
    np.random.random()
    stream.restore({"epoch": 1, "batch": 1})
    assert [next(stream).tolist() for _ in range(2)] == straight[4:]
    assert next(IterableStream(noise, seed=4)).tolist() != straight[0]
    random.setstate(outer[0])
    assert np.random.get_state()[1].shape == outer[1].shape


def test_the_callers_generators_do_not_change():
    random.seed(1)
    np.random.seed(1)
    expected = random.random(), np.random.random()
    random.seed(1)
    np.random.seed(1)
    list(IterableStream(noise, seed=3))
    assert (random.random(), np.random.random()) == expected


def test_the_callers_generators_do_not_change_after_an_error():
    def broken():
        np.random.random()
        raise OSError("gone")
        yield

    np.random.seed(1)
    expected = np.random.random()
    np.random.seed(1)
    with pytest.raises(OSError, match="gone"):
        next(IterableStream(broken, seed=3))
    assert np.random.random() == expected


def test_a_shuffling_data_loader_has_a_weak_guarantee():
    data = pytest.importorskip("torch").utils.data
    dataset = data.TensorDataset(data.default_collate(list(range(4))))
    found = [IterableStream(data.DataLoader(dataset, 2, shuffle=shuffle)).why_not_exact for shuffle in (True, False)]
    assert "pass its dataset" in found[0]
    assert not found[1]
