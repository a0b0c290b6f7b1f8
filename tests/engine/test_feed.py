"""Prefetching: what is taken, in which order, and what happens when a source is slow or does not return."""

import random
import threading
import time

import keras
import numpy as np
import pytest

from everstep.data.arrays import ArrayStream
from everstep.data.iterables import IterableStream
from everstep.engine.batch_dtypes import on_host
from everstep.engine.call_length import CallLength
from everstep.engine.feed import GRACE_SECONDS, Feed, FeedInterrupted
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

HANGING_SECONDS = 300


class Calls(CallLength):
    """Calls whose lengths a function of the window and the steps left in it returns."""

    def __init__(self, length):
        super().__init__()
        self._function = length

    def _choose(self, window, left):
        return self._function(window, left), 1


def numbers(count=20, repeat=False):
    return ArrayStream(np.arange(count), 1, repeat=repeat)


def taken(feed, *lengths):
    pieces = [feed.take(n) for n in lengths]
    return [piece.placed.ravel().tolist() for piece in pieces]


def wait_until(condition):
    """Waits for a background thread; the limit only guards against hanging."""
    limit = time.monotonic() + HANGING_SECONDS
    while not condition():
        assert time.monotonic() < limit, "timed out"
        time.sleep(0.01)


@pytest.fixture
def opened():
    feeds = []

    def open_feed(stream, length=lambda window, left: left, check=None, may_wait=lambda: True):
        feeds.append(Feed(stream, lambda block: block.data, Calls(length), check, may_wait))
        return feeds[-1]

    yield open_feed
    for feed in feeds:
        feed.close()


def test_position_is_that_of_the_last_piece_taken(opened):
    feed = opened(numbers())
    assert feed.state() == {"epoch": 0, "batch": 0}
    feed.expect(3)
    assert taken(feed, 3) == [[0, 1, 2]]
    wait_until(lambda: not feed._queue.empty())  # the thread has read ahead
    assert feed.state() == {"epoch": 0, "batch": 3}


def test_a_short_training_on_arrays_is_read_by_the_caller(opened):
    feed = opened(numbers(repeat=True), lambda window, left: min(left, 4))
    before = threading.active_count()
    for _ in range(2):
        feed.expect(10, steps_left=20)
        assert [len(piece) for piece in taken(feed, 4, 4, 2)] == [4, 4, 2]
    assert feed.state() == {"epoch": 0, "batch": 20}
    assert threading.active_count() == before
    assert feed.waited > 0
    feed.restore({"epoch": 0, "batch": 3})
    feed.expect(5, is_last=True)
    assert taken(feed, 4, 1) == [[3, 4, 5, 6], [7]]
    assert threading.active_count() == before


@pytest.mark.parametrize(("window", "steps_left"), [(10, None), (10, 10**9), (10, 5)], ids=["unknown", "many", "fewer"])
def test_a_thread_reads_if_more_may_follow(opened, window, steps_left):
    feed = opened(numbers(repeat=True))
    feed.expect(window, steps_left)
    assert taken(feed, 3) == [[0, 1, 2]]
    assert feed._thread is not None


def test_an_error_of_a_read_by_the_caller_can_be_retried(opened):
    wrong = [True]

    def check(data):
        if wrong[0]:
            raise ValueError("bad batch")

    feed = opened(numbers(), check=check)
    feed.expect(4, steps_left=4)
    with pytest.raises(ValueError, match="bad batch"):
        feed.take(4)
    assert feed.state() == {"epoch": 0, "batch": 0}
    wrong[0] = False
    feed.expect(4, steps_left=4)
    assert taken(feed, 4) == [[0, 1, 2, 3]]


def test_a_piece_is_never_longer_than_requested(opened):
    feed = opened(numbers())
    feed.expect(10)
    assert taken(feed, 4, 2, 4) == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert feed.state() == {"epoch": 0, "batch": 10}


def test_single_calls_are_cut_from_longer_blocks_of_arrays(opened, monkeypatch):
    sizes, block = [], ArrayStream.block

    def recorded(stream, n, *args):
        sizes.append(n)
        return block(stream, n, *args)

    monkeypatch.setattr(ArrayStream, "block", recorded)
    feed = opened(numbers(25), singles)
    feed.expect(25)
    assert taken(feed, *[1] * 25) == [[number] for number in range(25)]
    assert sizes[:3] == [10, 10, 5]
    feed.restore({"epoch": 0, "batch": 3})
    assert taken(feed, 1) == [[3]]
    assert feed.state() == {"epoch": 0, "batch": 4}


def test_samples_and_waiting_are_counted(opened):
    def slow():
        for size in (4, 4, 2):
            time.sleep(0.05)
            yield np.zeros((size, 3), "float32")

    feed = opened(IterableStream(slow))
    feed.expect(1)
    while feed.take(1) is not None:
        pass
    assert feed.samples == 10
    assert 0.1 < feed.waited < HANGING_SECONDS
    ready = opened(numbers())
    ready.expect(4)
    taken(ready, 4)
    wait_until(lambda: not ready._queue.empty())  # the thread has read ahead
    before = ready.waited
    taken(ready, 4)
    assert (ready.samples, ready.waited) == (8, before), "a prefetched piece is taken without waiting"


def test_restoring_drops_prefetched_pieces(opened):
    feed = opened(numbers())
    feed.expect(5)
    taken(feed, 5, 2)
    feed.restore({"epoch": 0, "batch": 2})
    feed.expect(2)
    assert taken(feed, 2) == [[2, 3]]


def test_the_end_stays_the_end(opened):
    feed = opened(numbers(3))
    feed.expect(5)
    assert taken(feed, 5) == [[0, 1, 2]]
    assert feed.take(5) is None
    assert feed.take(5) is None
    feed.restore({"epoch": 0, "batch": 1})
    feed.expect(5)
    assert taken(feed, 5) == [[1, 2]]


def test_an_error_comes_after_the_batches_before_it_and_can_be_retried(opened):
    failures = [OSError("first"), OSError("second")]

    def source():
        yield np.array([0])
        yield np.array([1])
        if failures:
            raise failures.pop(0)
        yield np.array([2])

    feed = opened(IterableStream(source), length=lambda window, left: 1)
    assert taken(feed, 1, 1) == [[0], [1]]
    for message in ("first", "second"):
        with pytest.raises(OSError, match=message):
            feed.take(1)
        assert feed.state() == {"epoch": 0, "batch": 2}
    assert taken(feed, 1) == [[2]]


def test_each_block_is_checked_once_before_it_is_taken(opened):
    seen = []

    def check(data):
        seen.extend(data.ravel().tolist())
        if 7 in seen:
            raise UsageError("seven")

    feed = opened(numbers(), length=lambda window, left: min(left, 3), check=check)
    feed.expect(6)
    assert taken(feed, 3, 3) == [[0, 1, 2], [3, 4, 5]]
    with raises_problem(reason="seven"):
        feed.take(3)
    assert feed.state() == {"epoch": 0, "batch": 6}
    assert seen[:9] == list(range(9))


def test_closing_ends_the_thread():
    def mine():
        return [thread for thread in threading.enumerate() if thread.name == "everstep-feed"]

    before = len(mine())
    feed = Feed(numbers(repeat=True), lambda block: block.data, CallLength("single"))
    feed.take(1)
    assert len(mine()) == before + 1
    feed.close()
    feed.close()
    assert len(mine()) == before
    with raises_problem(reason="closed"):
        feed.take(1)


# -- sources that are slow, or do not return --------------------------------------------------------------------------


class Source:
    """Yields numbers; blocks before the fourth one until `released` is set."""

    def __init__(self):
        self.released = threading.Event()
        self.blocked = threading.Event()

    def __call__(self):
        for number in range(6):
            if number == 3:
                self.blocked.set()
                self.released.wait()
            yield np.array([number])


@pytest.fixture
def source():
    source = Source()
    yield source
    source.released.set()


class Stop:
    """A stop that a test requests."""

    def __init__(self):
        self.requested = False

    def may_wait(self):
        return not self.requested


def singles(window, left):
    return 1


def test_a_requested_stop_interrupts_waiting_for_a_batch(opened, source):
    stop = Stop()
    feed = opened(IterableStream(source), singles, may_wait=stop.may_wait)
    assert taken(feed, 1, 1, 1) == [[0], [1], [2]]
    stop.requested = True
    for _ in range(2):
        with raises_problem(FeedInterrupted, reason="a stop was requested"):
            feed.take(1)
    assert feed.state() == {"epoch": 0, "batch": 3}
    stop.requested = False
    source.released.set()
    assert taken(feed, 1) == [[3]]


def test_prefetched_batches_are_taken_after_a_requested_stop(opened, source):
    stop = Stop()
    feed = opened(IterableStream(source), singles, may_wait=stop.may_wait)
    taken(feed, 1)
    wait_until(lambda: feed._queue.qsize() == 2)
    stop.requested = True
    assert taken(feed, 1, 1) == [[1], [2]]
    with pytest.raises(FeedInterrupted):
        feed.take(1)
    assert feed.state() == {"epoch": 0, "batch": 3}


def logged_by_the_feed(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "everstep.engine.feed"]


def test_a_pause_waits_for_a_slow_source(opened, source, caplog):
    feed = opened(IterableStream(source), singles)
    taken(feed, 1)
    source.blocked.wait()
    threading.Timer(GRACE_SECONDS + 0.3, source.released.set).start()
    with feed.paused():
        assert source.released.is_set()
    assert not logged_by_the_feed(caplog)


def test_a_pause_abandons_the_source_after_a_requested_stop(opened, source, caplog):
    stop = Stop()
    feed = opened(IterableStream(source), singles, may_wait=stop.may_wait)
    taken(feed, 1)
    source.blocked.wait()
    stop.requested = True
    begin = time.monotonic()
    for _ in range(3):  # only the first one waits for the grace period, and warns
        with feed.paused(), feed.paused():
            assert feed.state() == {"epoch": 0, "batch": 1}
    feed.close()
    assert GRACE_SECONDS <= time.monotonic() - begin < GRACE_SECONDS + HANGING_SECONDS
    [message] = logged_by_the_feed(caplog)
    assert "has not responded for 2 s" in message


def test_an_abandoned_source_does_not_change_the_global_random_generators(opened, source):
    stop = Stop()
    feed = opened(IterableStream(source, seed=1), singles, may_wait=stop.may_wait)
    np.random.seed(7)
    random.seed(7)
    expected = np.random.RandomState(7).random(3).tolist(), random.Random(7).random()
    taken(feed, 1)
    source.blocked.wait()
    stop.requested = True
    with feed.paused():
        source.released.set()
        time.sleep(0.1)  # it returns too late
        assert (np.random.random(3).tolist(), random.random()) == expected
    with pytest.raises(FeedInterrupted):
        taken(feed, 1, 1, 1)


def test_inside_a_pause_nothing_is_read(opened):
    """Also if the thread is about to read the next block."""
    read = []

    def source():
        while True:
            time.sleep(0.02)
            read.append(len(read))
            yield np.array([read[-1]])

    feed = opened(IterableStream(source), singles)
    taken(feed, 1)
    for _ in range(5):
        with feed.paused():
            before = len(read)
            time.sleep(0.05)
            assert len(read) == before
        taken(feed, 1)


def test_closing_abandons_a_source_that_does_not_return(source, caplog):
    feed = Feed(IterableStream(source), lambda block: block.data, CallLength("single"))
    taken(feed, 1)
    source.blocked.wait()
    begin = time.monotonic()
    feed.close()
    feed.close()
    assert GRACE_SECONDS <= time.monotonic() - begin < GRACE_SECONDS + HANGING_SECONDS
    assert len(logged_by_the_feed(caplog)) == 1
    threading.Timer(0.3, source.released.set).start()
    feed.restore({"epoch": 0, "batch": 2})  # waits until the thread has ended
    assert taken(feed, 1, 1) == [[2], [3]]
    feed.close()


def test_restoring_a_source_that_does_not_return(opened, source):
    stop = Stop()
    feed = opened(IterableStream(source), singles, may_wait=stop.may_wait)
    assert taken(feed, 1, 1) == [[0], [1]]
    source.blocked.wait()
    stop.requested = True
    with raises_problem(FeedInterrupted, reason="cannot move to another position"):
        feed.restore({"epoch": 0, "batch": 1})
    assert feed.state() == {"epoch": 0, "batch": 1}


@pytest.mark.parametrize(
    ("given", "placed"),
    [("float64", "float32"), ("float16", "float16"), ("int64", "int64"), ("uint8", "uint8"), ("bool", "bool")],
)
def test_dtypes_on_the_device(given, placed):
    assert on_host(np.zeros(3, given)).dtype == placed


@pytest.mark.parametrize("array", [np.array([None]), np.array(["2026-01-01"], "datetime64[D]")])
def test_dtypes_that_no_device_computes_with(array):
    with pytest.raises(UsageError) as caught:
        on_host(array)
    assert (caught.value.key, caught.value.received) == ("dtype of a batch", str(array.dtype))


def test_only_tensorflow_accepts_text():
    text = np.array(["a"])
    if keras.backend.backend() == "tensorflow":
        assert on_host(text) is text
        return
    with raises_problem(key="dtype of a batch", reason="dtype"):
        on_host(text)
