"""Combined streams: the order of tasks, the layout of batches, and restoring a position."""

import itertools

import numpy as np
import pytest

from everstep.data.arrays import ArrayStream
from everstep.data.iterables import IterableStream
from everstep.task.multitask.config import UniformConfig
from everstep.task.multitask.streams import InterleavedStream, JointStream, RoundsStream, TaskSampler
from everstep.testing.problems import raises_problem
from everstep.testing.streams import same_batch


def arrays(begin, count, size=2, repeat=True):
    x = np.arange(begin, begin + count, dtype=np.float32)
    return ArrayStream((x, x.astype(np.int32)), size, shuffle=repeat, repeat=repeat)


def interleaved(size_two=2):
    sampler = TaskSampler([1.0, 1.0], UniformConfig().exponent, seed=0)
    return InterleavedStream({"one": arrays(0, 10), "two": arrays(100, 14, size_two)}, sampler)


def joint():
    return JointStream({"one": arrays(0, 10), "two": arrays(100, 14)})


def rounds(limits=(None, None), repeat=False):
    parts = {"one": arrays(0, 5, repeat=repeat), "two": arrays(100, 3, repeat=repeat)}
    return RoundsStream(parts, dict(zip(parts, limits, strict=True)))


def seen(stream, n=None):
    """Returns the task that counts in each combined batch, and its features."""
    found = []
    for combined in itertools.islice(stream, n):
        index, batches = stream.layout.unpack(combined)
        name = stream.layout.names[index]
        found.append((name, batches[name][0].tolist()))
    return found


def test_tasks_of_the_same_structure_share_a_place():
    features, (task, rest, others) = interleaved().peek()
    assert (features.shape, task.shape, task.dtype, len(rest), others) == ((2,), (2,), np.int32, 1, ())


def test_tasks_of_another_structure_have_their_own_place():
    stream = interleaved(size_two=3)
    for combined in itertools.islice(stream, 9):
        features, (task, _, (other,)) = combined
        assert (features.shape, other[0].shape) == ((2,), (3,))
        assert np.any(features) == (task[0] == 0)
        assert np.any(other[0]) == (task[0] == 1)


def test_interleaved_reads_the_task_that_is_drawn():
    stream = interleaved()
    names = [name for name, _ in seen(stream, 200)]
    sampler = TaskSampler([1.0, 1.0], UniformConfig().exponent, seed=0)
    assert names == [("one", "two")[sampler.draw(step)] for step in range(200)]
    parts = stream.state()["parts"]
    assert {name: part["taken"] for name, part in parts.items()} == {n: names.count(n) for n in ("one", "two")}
    epochs, rest = divmod(names.count("one") - 1, 5)
    assert parts["one"]["position"] == {"epoch": epochs, "batch": rest + 1}


def test_joint_reads_all_tasks():
    stream = joint()
    for _ in range(3):
        _, batches = stream.layout.unpack(next(stream))
        assert np.all(batches["one"][0] < 100)
        assert np.all(batches["two"][0] >= 100)
    assert stream.never_ends


def test_joint_ends_with_the_first_that_ends():
    stream = JointStream({"one": arrays(0, 10), "two": arrays(100, 4, repeat=False)})
    assert not stream.never_ends
    assert len(list(stream)) == 2


def test_rounds_read_each_task_to_its_end():
    assert seen(rounds()) == [("one", [0, 1]), ("two", [100, 101]), ("one", [2, 3]), ("two", [102]), ("one", [4])]


def test_rounds_stop_at_the_limits():
    assert seen(rounds((1, None))) == [("one", [0, 1]), ("two", [100, 101]), ("two", [102])]
    assert [name for name, _ in seen(rounds((3, 1), repeat=True))] == ["one", "two", "one", "one"]
    assert rounds((None, 1), repeat=True).never_ends
    assert not rounds((3, 1), repeat=True).never_ends


def test_rounds_restart_from_the_beginning():
    stream = rounds()
    first = seen(stream)
    stream.restore({"epoch": 0, "batch": 0})
    assert seen(stream) == first


@pytest.mark.parametrize("make", [interleaved, joint, lambda: rounds((7, 7), repeat=True)])
@pytest.mark.parametrize("peek", [False, True])
def test_every_position_is_restored(make, peek):
    straight, states = make(), []
    batches = []
    for _ in range(14):
        states.append(straight.state())
        if peek:
            straight.peek()
            assert straight.state() == states[-1], "peeking does not move the position"
        batches.append(next(straight))
    for position in range(14):
        stream = make()
        if peek:
            stream.peek()
        stream.restore(states[position])
        assert stream.state() == states[position]
        assert all(same_batch(next(stream), batch) for batch in batches[position:])


def test_blocks_hold_the_same_batches():
    one, other = interleaved(), interleaved()
    block = one.block(9)
    assert block.count == 9
    for index in range(9):
        batch = next(other)
        assert np.array_equal(block.data[0][index], batch[0])
        assert block.states[index] == other.state()


def test_an_error_leaves_every_part_unchanged():
    """The second part fails once: the batch of the first part that was peeked at is not lost."""
    failures = [OSError("gone for a moment")]

    def flaky():
        yield np.zeros(2, np.float32)
        if failures:
            raise failures.pop()
        yield np.ones(2, np.float32)

    stream = JointStream({"one": arrays(0, 10), "two": IterableStream(flaky)})
    next(stream)
    with pytest.raises(OSError, match="for a moment"):
        next(stream)
    _, batches = stream.layout.unpack(next(stream))
    expected = arrays(0, 10)
    next(expected)
    assert same_batch(batches["one"], next(expected))
    assert batches["two"].tolist() == [1, 1]


def test_the_position_of_other_tasks_is_refused():
    state = JointStream({"one": arrays(0, 10), "three": arrays(0, 10)})
    next(state)
    with raises_problem(reason="belongs to the tasks one, three"):
        joint().restore(state.state())


def test_batches_of_only_features_and_dicts():
    parts = {
        "one": ArrayStream({"b": np.zeros(4), "a": np.ones(4)}, 2, repeat=True),
        "two": ArrayStream(np.ones((4, 3)), 2, repeat=True),
    }
    stream = JointStream(parts)
    _, batches = stream.layout.unpack(stream.peek())
    assert same_batch(batches["one"], parts["one"].__class__(parts["one"].arrays, 2).peek())
    assert batches["two"].shape == (2, 3)


def test_an_empty_part_is_named():
    with raises_problem(reason="no batch at all"):
        JointStream({"one": arrays(0, 10), "two": IterableStream(list)})
