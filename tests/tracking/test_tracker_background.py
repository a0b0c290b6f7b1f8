import threading

import pytest

from everstep.tracking.tracker import BackgroundTracker, MemoryTracker


class Slow(MemoryTracker):
    """Waits for `resume` before it logs; keeps the threads that called."""

    def __init__(self):
        super().__init__()
        self.resume = threading.Event()
        self.threads = set()

    def log(self, step, logs, kind):
        self.resume.wait(300)
        self.threads.add(threading.current_thread())
        super().log(step, logs, kind)


class Broken(MemoryTracker):
    def log(self, step, logs, kind):
        raise OSError("disk full")


def test_log_does_not_wait_and_flush_does():
    sink = Slow()
    tracker = BackgroundTracker(sink)
    for step in range(1, 6):
        tracker.log(step, {"loss": float(step)}, "train")
    assert not sink.points  # nothing was written, and the calls did not wait
    sink.resume.set()
    tracker.flush()
    assert [point.step for point in sink.points] == [1, 2, 3, 4, 5]
    assert threading.current_thread() not in sink.threads
    tracker.close()
    assert sink.closed


def test_close_writes_what_is_left():
    sink = Slow()
    tracker = BackgroundTracker(sink)
    tracker.log(1, {"loss": 1.0}, "train")
    threading.Timer(0.05, sink.resume.set).start()
    tracker.close()
    assert len(sink.points) == 1


@pytest.mark.parametrize("call", [lambda t: t.flush(), lambda t: t.close()])
def test_an_error_surfaces_at_the_next_call(call):
    tracker = BackgroundTracker(Broken())
    tracker.log(1, {"loss": 1.0}, "train")
    with pytest.raises(OSError, match="disk full"):
        call(tracker)
    tracker.close()  # raised once
