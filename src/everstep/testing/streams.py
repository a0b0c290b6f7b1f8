"""The contract of a `Stream`, as checks for any implementation.

    @pytest.mark.parametrize("check", streams.CHECKS, ids=lambda check: check.__name__)
    def test_contract(check):
        check(lambda repeat: MyStream(data, repeat=repeat))

The factory creates a fresh stream over the same finite data, at least three batches an epoch, as a new process
would: a check compares several of them.
"""

import itertools
import json
import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from everstep import Stream
from everstep.data import BLOCK_SECONDS, OwnRows, nest, part_of
from everstep.types import Batch, StreamState

Factory = Callable[[bool], Stream]
Read = list[tuple[Batch, StreamState]]


def same_batch(one: Batch, other: Batch) -> bool:
    """Whether two batches have the same nesting, shapes, types and bits."""
    if nest.structure(one) != nest.structure(other):
        return False
    pairs = zip(nest.flatten(one), nest.flatten(other), strict=True)
    return all(a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b) for a, b in pairs)


def check_counts_epochs(make: Factory) -> None:
    """Positions run from 1 to the epoch's length, then start again in the next epoch."""
    length = _length(make)
    states = [_position(state) for _, state in _read(make(True), 2 * length)]
    assert states == [{"epoch": e, "batch": b + 1} for e in range(2) for b in range(length)]
    assert make(True).state() == {"epoch": 0, "batch": 0}
    assert make(True).batches_per_epoch in (None, length)


def check_restores_everywhere(make: Factory) -> None:
    """From every position, epoch borders included, a fresh stream resumes with exactly the next batches."""
    length = _length(make)
    straight = _read(make(True), 3 * length)
    for position in range(2 * length + 1):
        stream = make(True)
        stream.restore(_state_at(straight, position))
        assert stream.state() == _state_at(straight, position)
        _agree(_read(stream, length), straight[position : position + length])


def check_restores_in_a_chain(make: Factory) -> None:
    """Short runs, every one resumed from the state of the one before, read what a single run reads."""
    straight = _read(make(True), 2 * _length(make))
    done = 0
    for batches in (1, 1, 2, len(straight) - 4):
        stream = make(True)
        stream.restore(json.loads(json.dumps(_state_at(straight[:done], done))))
        read = _read(stream, batches)
        _agree(read, straight[done : done + batches])
        straight[done : done + batches] = read
        done += batches


def check_restores_without_bookmarks(make: Factory) -> None:
    """Epoch and batch alone restore the same position as the whole state, also after a round trip through JSON."""
    length = _length(make)
    straight = _read(make(True), 3 * length)
    for position in (1, length, length + 1, 2 * length - 1):
        saved = json.loads(json.dumps(_state_at(straight, position)))
        for state in (saved, _position(saved)):
            stream = make(True)
            stream.restore(state)
            _agree(_read(stream, 2), straight[position : position + 2])


def check_restores_after_peek(make: Factory) -> None:
    """A stream restores the same way after `peek`, as when a model is built on the first batch."""
    length = _length(make)
    straight = _read(make(True), 3 * length)
    for position in range(2 * length + 1):
        stream = make(True)
        stream.peek()
        stream.restore(_state_at(straight, position))
        _agree(_read(stream, 2), straight[position : position + 2])


def check_restores_twice(make: Factory) -> None:
    """A stream in use can be restored forward, back, and back again."""
    straight = _read(make(True), 3 * _length(make))
    stream = make(True)
    for position in (_length(make) + 1, 1, _length(make), 0, 2, 2):
        stream.restore(_state_at(straight, position))
        _agree(_read(stream, 2), straight[position : position + 2])


def check_peek_does_not_move(make: Factory) -> None:
    """`peek` changes neither the position nor the next batches."""
    straight = _read(make(True), 2 * _length(make))
    stream = make(True)
    for batch, state in straight:
        before = stream.state()
        assert same_batch(stream.peek(), stream.peek())
        assert stream.state() == before
        assert same_batch(next(stream), batch)
        assert stream.state() == state


def check_read_in_another_thread(make: Factory) -> None:
    """What one thread has opened with `peek`, another one reads on, as the feed does."""
    straight, stream = _read(make(True), _length(make)), make(True)
    read: Read = []
    stream.peek()
    thread = threading.Thread(target=lambda: read.extend(_read(stream, len(straight))))
    thread.start()
    thread.join()
    _agree(read, straight)


def check_blocks_equal_batches(make: Factory) -> None:
    """Blocks of any size hold the batches and positions that `next` gives, also across epochs."""
    length = _length(make)
    straight = _read(make(True), 2 * length)
    for n in (1, 2, 3, 100):
        stream, read = make(True), Read()
        while len(read) < 2 * length:
            block = _block(stream, n)
            assert 1 <= block.count <= n
            assert stream.state() == block.states[-1]
            read += _unstack(block)
        _agree(read[: 2 * length], straight)


def check_blocks_after_next_and_peek(make: Factory) -> None:
    """`next`, `peek` and `block` can be mixed."""
    straight = _read(make(True), 4)
    stream = make(True)
    read: Read = [(next(stream), stream.state())]
    stream.peek()
    while len(read) < 4:
        read += _unstack(_block(stream, 4 - len(read)))
    _agree(read, straight)


def check_other_shape_alone(make: Factory) -> None:
    """A batch of another shape, such as a short last one, is a block of its own; the others share one."""
    shapes = [np.shape(nest.flatten(batch)[0]) for batch, _ in _read(make(True), _length(make))]
    stream = make(False)
    counts = [_block(stream, 100).count for _ in itertools.groupby(shapes)]
    assert counts == [len(list(group)) for _, group in itertools.groupby(shapes)]


def check_blocks_split(make: Factory) -> None:
    """The two parts of a block are its batches and positions."""
    whole = _block(make(True), 3)
    for n in range(1, whole.count):
        head, tail = whole.split(n)
        assert (head.count, tail.count) == (n, whole.count - n)
        _agree(_unstack(head) + _unstack(tail), _unstack(whole))


def check_ends_and_starts_again(make: Factory) -> None:
    """Without repeat there is one epoch, the stream stays at its end, and can be restored to its start."""
    stream = make(False)
    first = list(stream)
    end = stream.state()
    assert next(stream, None) is None
    assert stream.block(5) is None
    assert stream.state() == end
    stream.restore({"epoch": 0, "batch": 0})
    assert len(list(stream)) == len(first) == _length(make)
    resumed = make(False)
    resumed.restore(end)
    assert resumed.block(1) is None


def check_rows_of_processes(make: Factory) -> None:
    """The rows that several processes keep are together each batch, in order; all processes have the same positions.

    A batch with fewer samples than there are processes is whole on each of them, and so is one of sparse arrays.
    """
    straight = _read(make(True), 2 * _length(make))
    for size in (1, 2, 3, 4):
        ranks = [make(True) for _ in range(size)]
        for rank, stream in enumerate(ranks):
            stream.peek()  # as a model is built on the first batch
            stream.keep_rows(_rows_of(rank, size))
        _check_rows(ranks, straight)


def check_rows_after_restore(make: Factory) -> None:
    """What so many processes have saved, another number restores: the rows of the next batches follow."""
    length = _length(make)
    straight = _read(make(True), 3 * length)
    for position, before, after in ((1, 3, 2), (length, 2, 4), (length + 1, 1, 3)):
        saving = make(True)
        saving.keep_rows(_rows_of(before - 1, before))
        saved = _read(saving, position)[-1][1]
        assert saved == _state_at(straight, position)
        ranks = [make(True) for _ in range(after)]
        for rank, stream in enumerate(ranks):
            stream.keep_rows(_rows_of(rank, after))
            stream.restore(saved)
        _check_rows(ranks, straight[position : position + length])


def check_rows_in_blocks(make: Factory) -> None:
    """Blocks of rows end where blocks of whole batches do, and know how many samples these have."""
    whole, parts = make(True), [make(True) for _ in range(3)]
    for rank, stream in enumerate(parts):
        stream.keep_rows(_rows_of(rank, 3))
    for n in (2, 1, 5):
        block = _block(whole, n, math.inf)
        for rank, stream in enumerate(parts):
            part = _block(stream, n, math.inf)
            assert (part.count, part.states, part.samples) == (block.count, block.states, block.samples)
            for (rows, _), (batch, _) in zip(_unstack(part), _unstack(block), strict=True):
                assert same_batch(rows, part_of(batch, _rows_of(rank, 3)).data)


def check_names_every_sample(make: Factory) -> None:
    """`sample_ids`, where a stream has them, are texts, one for each sample of an epoch; `classes` are texts, too."""
    stream = make(False)
    ids = stream.sample_ids()
    samples = sum(len(nest.flatten(batch)[0]) for batch in make(False))
    assert ids is None or (len(ids) == samples and all(isinstance(name, str) for name in ids))
    assert all(isinstance(name, str) for name in stream.classes)


CHECKS: list[Callable[[Factory], None]] = [
    check_counts_epochs,
    check_restores_everywhere,
    check_restores_in_a_chain,
    check_restores_without_bookmarks,
    check_restores_after_peek,
    check_restores_twice,
    check_peek_does_not_move,
    check_read_in_another_thread,
    check_blocks_equal_batches,
    check_blocks_after_next_and_peek,
    check_other_shape_alone,
    check_blocks_split,
    check_ends_and_starts_again,
    check_rows_of_processes,
    check_rows_after_restore,
    check_rows_in_blocks,
    check_names_every_sample,
]
"""Every check of the contract; each takes the factory."""


def check_every_sample_once(make: Factory, samples: int, *, shuffled: bool) -> None:
    """Each epoch has each sample exactly once; a shuffled one in an order of its own.

    Args:
      make: Creates streams whose first leaf holds the numbers 0 to `samples - 1`, one per sample.
      samples: How many samples an epoch has.
      shuffled: Whether each epoch must have an order of its own; otherwise all must have the natural one.
    """
    stream, length = make(True), _length(make)
    epochs = [[nest.flatten(next(stream))[0] for _ in range(length)] for _ in range(3)]
    orders = [np.concatenate(epoch).tolist() for epoch in epochs]
    assert all(sorted(order) == list(range(samples)) for order in orders)
    assert len({tuple(order) for order in orders}) == (3 if shuffled else 1)
    assert shuffled or orders[0] == list(range(samples))


def _length(make: Factory) -> int:
    return sum(1 for _ in make(False))


def _read(stream: Stream, count: int) -> Read:
    return [(next(stream), stream.state()) for _ in range(count)]


def _position(state: StreamState) -> StreamState:
    """The two numbers that every stream has; others belong to its implementation."""
    return {key: state[key] for key in ("epoch", "batch")}


def _block(stream: Stream, n: int, seconds: float = BLOCK_SECONDS) -> Any:
    block = stream.block(n, seconds)
    assert block is not None
    return block


def _rows_of(rank: int, size: int) -> OwnRows:
    """Returns which rows one of several processes needs."""

    def rows(samples: int) -> slice:
        if samples < size:
            return slice(0, samples)
        return slice(samples * rank // size, samples * (rank + 1) // size)

    return rows


def _check_rows(ranks: Sequence[Stream], expected: Read) -> None:
    for batch, state in expected:
        parts = [next(stream) for stream in ranks]
        assert all(_position(stream.state()) == _position(state) for stream in ranks)
        if len(ranks) > len(nest.flatten(batch)[0]) or part_of(batch, _rows_of(0, 1)).batch_size is None:
            assert all(same_batch(part, batch) for part in parts)
        else:
            assert same_batch(nest.map_leaves(lambda *leaves: np.concatenate(leaves), *parts), batch)


def _unstack(block: Any) -> Read:
    parts = [nest.map_leaves(lambda leaf, i=i: leaf[i], block.data) for i in range(block.count)]
    return list(zip(parts, block.states, strict=True))


def _state_at(read: Read, position: int) -> StreamState:
    return read[position - 1][1] if position else {"epoch": 0, "batch": 0}


def _agree(read: Read, expected: Read) -> None:
    """Compares batches and positions; a library may write one bookmark in several ways."""
    assert [_position(state) for _, state in read] == [_position(state) for _, state in expected]
    assert all(same_batch(a, b) for (a, _), (b, _) in zip(read, expected, strict=True))
