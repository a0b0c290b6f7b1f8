import errno
import os

import pytest

from everstep.errors import UsageError
from everstep.testing.problems import raises_problem
from everstep.tracking.tracker import MemoryTracker, MultiTracker, NoopTracker, Point


class Failing(MemoryTracker):
    def close(self):
        super().close()
        raise ValueError("a bug")


class OnABadDisk(MemoryTracker):
    """Every call fails while `full`; what is logged is there all the same, as trackers have to see to."""

    full = True

    def start(self, step):
        super().start(step)
        self._write()

    def log(self, step, logs, kind):
        super().log(step, logs, kind)
        self._write()

    def flush(self):
        self._write()

    def close(self):
        super().close()
        self._write()

    def _write(self):
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x.csv")


def test_noop_does_nothing():
    tracker = NoopTracker()
    tracker.start(0)
    tracker.log(1, {"loss": float("nan")}, "train")
    tracker.flush()
    tracker.close()


def test_multi_calls_all():
    memories = [MemoryTracker(), MemoryTracker()]
    tracker = MultiTracker(memories)
    tracker.start(7)
    tracker.log(8, {"loss": 1}, "train")
    assert all(m.points == [Point(8, {"loss": 1.0}, "train")] and m.starts == [7] for m in memories)


def test_multi_closes_all_and_then_raises():
    trackers = [Failing(), MemoryTracker()]
    with pytest.raises(ValueError, match="a bug"):
        MultiTracker(trackers).close()
    assert all(tracker.closed for tracker in trackers)


def test_multi_collects_several_errors():
    with pytest.raises(ExceptionGroup) as caught:
        MultiTracker([Failing(), Failing(), MemoryTracker()]).close()
    assert len(caught.value.exceptions) == 2


def test_a_bad_disk_stops_neither_the_run_nor_the_other_trackers(caplog):
    bad, good = OnABadDisk(), MemoryTracker()
    tracker = MultiTracker([bad, good])
    tracker.start(0)
    for step in (1, 2, 3):
        tracker.log(step, {"loss": 1}, "train")
        tracker.flush()
    assert bad.points == good.points
    assert len(good.points) == 3
    (warning,) = caplog.messages
    assert "OnABadDisk" in warning
    assert "No space left on device: '/data/x.csv'" in warning
    tracker.close()
    assert good.closed
    assert "could not write all it had" in caplog.messages[1]


def test_recovery_of_a_disk_is_logged_and_so_is_a_new_failure(caplog):
    bad = OnABadDisk()
    tracker = MultiTracker([bad])
    for full in (True, True, False, False, True, False):
        bad.full = full
        tracker.flush()
    assert ["can write again" in message for message in caplog.messages] == [False, True, False, True]


def test_a_usage_error_is_raised_at_the_start():
    class Refusing(MemoryTracker):
        def start(self, step):
            raise UsageError("not mine")

    with raises_problem(reason="not mine"):
        MultiTracker([Refusing()]).start(0)
