import random
import threading
import time

import keras
import numpy as np
import pytest

from everstep.data.arrays import ArrayStream
from everstep.data.iterables import IterableStream
from everstep.engine.feed import GRACE_SECONDS, Feed, FeedInterrupted, on_host
from everstep.errors import UsageError


def numbers(count=20, repeat=False):
    return ArrayStream(np.arange(count), 1, repeat=repeat)


def taken(feed, *lengths):
    pieces = [feed.take(n) for n in lengths]
    return [piece.placed.ravel().tolist() for piece in pieces]


@pytest.fixture
def opened():
    feeds = []

    def open_feed(stream, length=lambda window, left: left, check=None, may_wait=lambda: True):
        feeds.append(Feed(stream, lambda data: data, length, check, may_wait))
        return feeds[-1]

    yield open_feed
    for feed in feeds:
        feed.close()


def test_position_is_of_what_was_taken(opened):
    feed = opened(numbers())
    assert feed.state() == {"epoch": 0, "batch": 0}
    feed.expect(3)
    assert taken(feed, 3) == [[0, 1, 2]]
    time.sleep(0.05)  # for the thread to read ahead
    assert feed.state() == {"epoch": 0, "batch": 3}


def test_a_piece_is_never_longer_than_asked(opened):
    feed = opened(numbers())
    feed.expect(10)
    assert taken(feed, 4, 2, 4) == [[0, 1, 2, 3], [4, 5], [6, 7, 8, 9]]
    assert feed.state() == {"epoch": 0, "batch": 10}


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
    assert 0.1 < feed.waited < 5
    ready = opened(numbers())
    ready.expect(4)
    taken(ready, 4)
    time.sleep(0.1)  # for the thread to read ahead
    before = ready.waited
    taken(ready, 4)
    assert (ready.samples, ready.waited) == (8, before), "what is there already is not waited for"


def test_restoring_drops_what_was_read_ahead(opened):
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
    with pytest.raises(UsageError, match="seven"):
        feed.take(3)
    assert feed.state() == {"epoch": 0, "batch": 6}
    assert seen[:9] == list(range(9))


def test_closing_ends_the_thread():
    def mine():
        return [thread for thread in threading.enumerate() if thread.name == "everstep-feed"]

    before = len(mine())
    feed = Feed(numbers(repeat=True), lambda data: data, lambda window, left: 1)
    feed.take(1)
    assert len(mine()) == before + 1
    feed.close()
    feed.close()
    assert len(mine()) == before
    with pytest.raises(UsageError, match="closed"):
        feed.take(1)


# -- sources that are slow, or do not come back ------------------------------------------------------------------------


class Source:
    """Numbers; the fourth one comes when `goes_on` is set."""

    def __init__(self):
        self.goes_on = threading.Event()
        self.asked = threading.Event()

    def __call__(self):
        for number in range(6):
            if number == 3:
                self.asked.set()
                self.goes_on.wait()
            yield np.array([number])

    def stuck(self):
        self.asked.wait()
        time.sleep(0.05)


@pytest.fixture
def source():
    source = Source()
    yield source
    source.goes_on.set()


class Guard:
    """Says that the run is to end when it was asked `patience` times."""

    def __init__(self, patience=1):
        self.patience = patience

    def may_wait(self):
        self.patience -= 1
        return self.patience > 0


def singles(window, left):
    return 1


def test_nobody_waits_for_a_batch_when_the_run_is_to_end(opened, source):
    feed = opened(IterableStream(source), singles, may_wait=Guard(3).may_wait)
    assert taken(feed, 1, 1, 1) == [[0], [1], [2]]
    for _ in range(2):
        with pytest.raises(FeedInterrupted, match="a stop was requested"):
            feed.take(1)
    assert feed.state() == {"epoch": 0, "batch": 3}
    source.goes_on.set()
    assert taken(feed, 1) == [[3]]


def test_a_batch_that_is_there_is_given_to_whoever_is_about_to_end(opened, source):
    feed = opened(IterableStream(source), singles, may_wait=lambda: False)
    with pytest.raises(FeedInterrupted):
        taken(feed, 1, 1, 1, 1)
    assert feed.state() == {"epoch": 0, "batch": 3}


def test_a_pause_waits_for_a_slow_source(opened, source, caplog):
    feed = opened(IterableStream(source), singles)
    taken(feed, 1)
    source.stuck()
    threading.Timer(GRACE_SECONDS + 0.3, source.goes_on.set).start()
    with feed.paused():
        assert source.goes_on.is_set()
    assert not caplog.records


def test_a_pause_does_not_wait_for_ever_when_the_run_is_to_end(opened, source, caplog):
    feed = opened(IterableStream(source), singles, may_wait=Guard().may_wait)
    taken(feed, 1)
    source.stuck()
    begin = time.monotonic()
    for _ in range(3):  # it is waited for once, and said once
        with feed.paused(), feed.paused():
            assert feed.state() == {"epoch": 0, "batch": 1}
    feed.close()
    assert GRACE_SECONDS <= time.monotonic() - begin < GRACE_SECONDS + 2
    [record] = caplog.records
    assert "has not answered for 2 s" in record.getMessage()


def test_a_source_that_does_not_come_back_gives_back_the_random_numbers(opened, source):
    feed = opened(IterableStream(source, seed=1), singles, may_wait=Guard().may_wait)
    np.random.seed(7)
    random.seed(7)
    expected = np.random.RandomState(7).random(3).tolist(), random.Random(7).random()
    taken(feed, 1)
    source.stuck()
    with feed.paused():
        source.goes_on.set()
        time.sleep(0.1)  # it comes back too late
        assert (np.random.random(3).tolist(), random.random()) == expected
    with pytest.raises(FeedInterrupted):
        taken(feed, 1, 1, 1)


def test_inside_a_pause_nothing_is_read(opened):
    """Also where the thread comes for the next block at once."""
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


def test_closing_leaves_a_source_behind_that_does_not_come_back(source, caplog):
    feed = Feed(IterableStream(source), lambda data: data, singles)
    taken(feed, 1)
    source.stuck()
    begin = time.monotonic()
    feed.close()
    feed.close()
    assert GRACE_SECONDS <= time.monotonic() - begin < GRACE_SECONDS + 1
    assert len(caplog.records) == 1
    threading.Timer(0.3, source.goes_on.set).start()
    feed.restore({"epoch": 0, "batch": 2})  # waits till the stream is free
    assert taken(feed, 1, 1) == [[2], [3]]
    feed.close()


def test_restoring_a_source_that_does_not_come_back(opened, source):
    feed = opened(IterableStream(source), singles, may_wait=Guard().may_wait)
    assert taken(feed, 1, 1) == [[0], [1]]
    source.stuck()
    with pytest.raises(FeedInterrupted, match="cannot move to another position"):
        feed.restore({"epoch": 0, "batch": 1})
    assert feed.state() == {"epoch": 0, "batch": 1}


@pytest.mark.parametrize(
    ("given", "placed"),
    [("float64", "float32"), ("float16", "float16"), ("int64", "int64"), ("uint8", "uint8"), ("bool", "bool")],
)
def test_types_on_the_way_to_the_device(given, placed):
    assert on_host(np.zeros(3, given)).dtype == placed


@pytest.mark.parametrize("array", [np.array([None]), np.array(["2026-01-01"], "datetime64[D]")])
def test_types_no_device_takes(array):
    with pytest.raises(UsageError, match="dtype"):
        on_host(array)


def test_only_tensorflow_takes_text():
    text = np.array(["a"])
    if keras.backend.backend() == "tensorflow":
        assert on_host(text) is text
        return
    with pytest.raises(UsageError, match="dtype"):
        on_host(text)
