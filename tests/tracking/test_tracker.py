import pytest

from everstep.tracking.tracker import MemoryTracker, MultiTracker, NoopTracker, Point


class Failing(MemoryTracker):
    def close(self):
        super().close()
        raise OSError("disk full")


def test_noop_does_nothing():
    tracker = NoopTracker()
    tracker.start(0)
    tracker.log(1, {"loss": float("nan")}, "train")
    tracker.flush()
    tracker.close()


def test_multi_tells_all():
    memories = [MemoryTracker(), MemoryTracker()]
    tracker = MultiTracker(memories)
    tracker.start(7)
    tracker.log(8, {"loss": 1}, "train")
    assert all(m.points == [Point(8, {"loss": 1.0}, "train")] and m.starts == [7] for m in memories)


def test_multi_closes_all_and_then_complains():
    trackers = [Failing(), MemoryTracker()]
    with pytest.raises(OSError, match="disk full"):
        MultiTracker(trackers).close()
    assert all(tracker.closed for tracker in trackers)


def test_multi_collects_several_errors():
    with pytest.raises(ExceptionGroup) as caught:
        MultiTracker([Failing(), Failing(), MemoryTracker()]).close()
    assert len(caught.value.exceptions) == 2
