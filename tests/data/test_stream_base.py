import time

import numpy as np
import pytest

from everstep.data import Block, IterableStream, Stream
from everstep.errors import UsageError


class Counting(Stream):
    """Epochs of `lengths` batches, the last length again and again."""

    def __init__(self, lengths, repeat=True):
        super().__init__(repeat=repeat)
        self.lengths, self.opened = lengths, []

    def open(self, epoch, batch):
        self.opened.append((epoch, batch))
        length = self.lengths[min(epoch, len(self.lengths) - 1)]
        return (np.array([epoch * 100 + index]) for index in range(batch, length))


def test_epochs_may_differ_in_length():
    stream = Counting([2, 3])
    assert [int(next(stream)[0]) for _ in range(6)] == [0, 1, 100, 101, 102, 200]
    assert stream.state() == {"epoch": 2, "batch": 1}


@pytest.mark.parametrize("repeat", [True, False])
def test_empty_source_is_an_error_not_a_loop(repeat):
    with pytest.raises(UsageError, match="no batch at all"):
        next(Counting([0], repeat))
    with pytest.raises(UsageError, match="no batch at all"):
        Counting([0], repeat).block(3)


def test_empty_second_epoch_is_an_error():
    stream = Counting([1, 0])
    next(stream)
    with pytest.raises(UsageError, match="no batch at all"):
        next(stream)
    with pytest.raises(UsageError, match="no batch at all"):
        stream.peek()


def test_sources_are_opened_lazily_and_once_per_epoch():
    stream = Counting([2])
    assert stream.opened == []
    for _ in range(4):
        next(stream)
    assert stream.opened == [(0, 0), (1, 0)]


def test_a_source_that_breaks_is_not_at_its_end():
    failures = [OSError("network"), None]

    def batches():
        yield [1.0, 2.0]
        failure = failures.pop(0)
        if failure:
            raise failure
        yield [3.0, 4.0]

    stream = IterableStream(lambda: map(np.array, batches()), repeat=True)
    next(stream)
    with pytest.raises(OSError, match="network"):
        next(stream)
    assert stream.state() == {"epoch": 0, "batch": 1}
    assert next(stream).tolist() == [3.0, 4.0]


@pytest.mark.parametrize(
    "state",
    [
        {},
        {"epoch": 0},
        {"epoch": 0, "batch": -1},
        {"epoch": 0, "batch": "2"},
        {"epoch": 0, "batch": 1, "x": 1},
    ],
)
def test_states_are_checked(state):
    with pytest.raises(UsageError, match="not a stream position"):
        Counting([3]).restore(state)


@pytest.mark.parametrize("n", [-1, 0, 2, 3])
def test_split_leaves_no_part_empty(n):
    block = Counting([2]).block(2)
    assert isinstance(block, Block)
    with pytest.raises(ValueError, match="cannot be split"):
        block.split(n)


def test_a_block_does_not_wait_for_more_than_a_second_of_reading():
    def slow():
        for number in range(9):
            time.sleep(0.3)
            yield np.array([number])

    stream, begin = IterableStream(slow), time.monotonic()
    blocks = [stream.block(100)]
    assert 1 < time.monotonic() - begin < 2
    assert blocks[0].count < 6
    while (block := stream.block(100)) is not None:
        blocks.append(block)
    assert np.concatenate([block.data.ravel() for block in blocks]).tolist() == list(range(9))
    assert [state["batch"] for block in blocks for state in block.states] == list(range(1, 10))


def test_states_are_copies():
    stream = Counting([3])
    state = stream.state()
    next(stream)
    assert state == {"epoch": 0, "batch": 0}
