"""The base class of streams: positions, epochs, errors and blocks."""

import types

import numpy as np
import pytest

from everstep.data import Block, IterableStream, MappedStream, Stream
from everstep.testing import streams
from everstep.testing.problems import raises_problem


class Counting(Stream):
    """Epochs of `lengths` batches; later epochs have the last length."""

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
def test_an_empty_source_is_an_error(repeat):
    with raises_problem(reason="no batch at all"):
        next(Counting([0], repeat))
    with raises_problem(reason="no batch at all"):
        Counting([0], repeat).block(3)


class SameNames(Counting):
    """Its own attributes and methods have names that a stream could have for itself."""

    def __init__(self, repeat):
        self._position, self._repeat = "set before", None
        super().__init__([3, 3, 3], repeat)
        for name in ("bookmark", "batches", "batches_per_epoch", "ahead", "own_rows", "rows", "position"):
            setattr(self, f"_{name}", name)

    def _read(self, *arguments):
        raise NotImplementedError

    _rest = _opened = _as_part = _read_ahead = _continues = _checked = _move = _reset = _read


@pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
def test_a_subclass_may_use_any_private_name(check):
    check(SameNames)


def test_an_empty_second_epoch_is_an_error():
    stream = Counting([1, 0])
    next(stream)
    with raises_problem(reason="no batch at all"):
        next(stream)
    with raises_problem(reason="no batch at all"):
        stream.peek()


def test_repeated_starts_again_where_the_stream_is_not_to_repeat():
    once = Counting([2, 3], repeat=False)
    assert next(once)[0] == 0
    again = once.repeated()
    assert [int(next(again)[0]) for _ in range(5)] == [1, 100, 101, 102, 200]
    assert [int(batch[0]) for batch in once] == [1]  # it is as it was
    assert again.repeated() is again


def test_what_can_be_read_only_once_is_not_repeated():
    once = IterableStream(iter([np.zeros(2)]))
    assert once.is_single_pass
    assert once.repeated() is once
    mapped = MappedStream(once, lambda batch: batch)
    assert mapped.repeated() is mapped


def test_sources_are_opened_lazily_and_once_per_epoch():
    stream = Counting([2])
    assert stream.opened == []
    for _ in range(4):
        next(stream)
    assert stream.opened == [(0, 0), (1, 0)]


def test_a_source_that_fails_is_read_again():
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
def test_invalid_states_are_refused(state):
    with raises_problem(reason="not a stream position"):
        Counting([3]).restore(state)


@pytest.mark.parametrize("n", [-1, 0, 2, 3])
def test_a_block_cannot_be_split_into_an_empty_part(n):
    block = Counting([2]).block(2)
    assert isinstance(block, Block)
    with pytest.raises(ValueError, match="cannot be split"):
        block.split(n)


def test_a_block_gets_no_more_batches_after_a_second_of_reading(monkeypatch):
    """By a clock that only the source moves, by 0.3 seconds per batch."""
    now = [0.0]
    monkeypatch.setattr("everstep.data.stream.time", types.SimpleNamespace(monotonic=lambda: now[0]))

    def slow():
        for number in range(9):
            now[0] += 0.3
            yield np.array([number])

    stream = IterableStream(slow)
    blocks = []
    while (block := stream.block(100)) is not None:
        blocks.append(block)
    assert [block.count for block in blocks] == [4, 4, 1]
    assert np.concatenate([block.data.ravel() for block in blocks]).tolist() == list(range(9))
    assert [state["batch"] for block in blocks for state in block.states] == list(range(1, 10))


def test_states_are_copies():
    stream = Counting([3])
    state = stream.state()
    next(stream)
    assert state == {"epoch": 0, "batch": 0}
