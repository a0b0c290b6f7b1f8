"""Arrays in memory: the documented order, blocks across epochs, and arrays that are refused."""

import collections

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from everstep.data import ArrayStream
from everstep.errors import UsageError
from everstep.testing import streams
from everstep.testing.problems import raises_problem

Pair = collections.namedtuple("Pair", ["x", "y"])


@hypothesis.given(
    samples=st.integers(1, 40),
    batch=st.integers(1, 45),
    seed=st.integers(-(2**63), 2**64 - 1),
    epoch=st.integers(0, 5),
    shuffle=st.booleans(),
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=6),
)
@hypothesis.settings(deadline=None, max_examples=150, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_any_blocks_from_any_position_are_the_epochs_batches(samples, batch, seed, epoch, shuffle, sizes):
    def make():
        return ArrayStream(np.arange(samples), batch, shuffle=shuffle, seed=seed, repeat=True)

    order = np.arange(samples)
    if shuffle:
        key = np.array([seed % 2**64, epoch], dtype=np.uint64)
        order = np.random.Generator(np.random.Philox(key=key)).permutation(samples)
    expected = np.split(order, range(batch, samples, batch))
    for position in range(len(expected)):
        stream, read = make(), []
        stream.restore({"epoch": epoch, "batch": position})
        for size in sizes:
            block = stream.block(size)
            read += [row for row, state in zip(block.data, block.states, strict=True) if state["epoch"] == epoch]
        rest = expected[position : position + len(read)]
        assert all(np.array_equal(a, b) for a, b in zip(read, rest, strict=True))


@hypothesis.given(samples=st.integers(1, 60), batch=st.integers(1, 60), drop=st.booleans())
@hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
def test_epoch_length(samples, batch, drop):
    if drop and batch > samples:
        with raises_problem(key="global_batch_size", received=batch, reason=f"has only {samples} samples"):
            ArrayStream(np.zeros(samples), batch, drop_remainder=True)
        return
    stream = ArrayStream(np.zeros(samples), batch, drop_remainder=drop)
    batches = list(stream)
    assert len(batches) == stream.batches_per_epoch
    assert sum(map(len, batches)) == (samples - samples % batch if drop else samples)


def test_order_is_the_documented_one():
    stream = ArrayStream(np.arange(10), 10, shuffle=True, seed=7, repeat=True)
    epochs = [next(stream).tolist() for _ in range(2)]
    assert epochs == [
        np.random.Generator(np.random.Philox(key=[7, epoch])).permutation(10).tolist() for epoch in range(2)
    ]


def test_order_never_changes():
    stream = ArrayStream(np.arange(8), 8, shuffle=True, seed=1, repeat=True)
    assert [next(stream).tolist() for _ in range(2)] == [[0, 5, 4, 1, 2, 6, 3, 7], [2, 3, 6, 7, 1, 4, 0, 5]]


def test_nesting_is_kept():
    x, y = np.arange(6.0).reshape(3, 2), np.array(["a", "b", "c"])
    batch = next(ArrayStream({"pair": Pair(x, [y, None]), "empty": None}, 2))
    assert isinstance(batch["pair"], Pair)
    assert batch["pair"].y[0].tolist() == ["a", "b"]
    assert batch["pair"].y[1] is None
    assert list(batch) == ["pair", "empty"]


@pytest.mark.parametrize("shuffle", [True, False])
def test_blocks_are_fresh_contiguous_memory(shuffle):
    data = np.asfortranarray(np.arange(24.0).reshape(8, 3))
    stream = ArrayStream(data, 2, shuffle=shuffle)
    block = stream.block(3)
    assert block.data.shape == (3, 2, 3)
    assert block.data.flags.c_contiguous
    assert not np.shares_memory(block.data, data)
    stream.restore({"epoch": 0, "batch": 0})
    block.data[:] = -1
    assert streams.same_batch(np.sort(np.concatenate(list(stream)), axis=0), np.ascontiguousarray(data))


def test_a_position_after_the_end_means_that_the_data_has_changed():
    with raises_problem(reason="after batch 5 of an epoch"):
        ArrayStream(np.arange(8), 2).restore({"epoch": 0, "batch": 5})


def test_different_lengths_are_named_by_path():
    with raises_problem(reason=r"\['x'\]\[0\]: 3, \['x'\]\[1\]: 4, \['y'\]: 3"):
        ArrayStream({"x": (np.zeros(3), np.zeros((4, 2))), "y": np.zeros(3)}, 1)


@pytest.mark.parametrize("arrays", [np.zeros((0, 3)), (), {"x": np.zeros(0), "y": np.zeros(0)}, None])
def test_empty_arrays(arrays):
    with raises_problem(reason="empty"):
        ArrayStream(arrays, 1)


def test_scalars_and_objects_are_refused():
    with raises_problem(key="[1]", received=3.0, reason="has no axis"):
        ArrayStream((np.zeros(3), np.float32(3.0)), 1)
    with raises_problem(key="['text']", reason="holds Python objects"):
        ArrayStream({"text": np.array(["a", None], dtype=object)}, 1)


def test_batch_size_must_be_positive():
    with pytest.raises(UsageError) as error:
        ArrayStream(np.zeros(3), 0)
    assert (error.value.key, error.value.received) == ("global_batch_size", 0)


def test_a_batch_larger_than_the_data_is_refused():
    with pytest.raises(UsageError) as error:
        ArrayStream(np.zeros(3), 4, drop_remainder=True)
    assert (error.value.key, error.value.received) == ("global_batch_size", 4)
    assert error.value.remedy.startswith("lower global_batch_size")
