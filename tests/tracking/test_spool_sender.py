import threading
import time

import pytest

from everstep.tracking.delivery import Delivery, DeliveryProgress, Forgotten, SendDelays, Sender
from everstep.tracking.spool import Spool

QUICK = SendDelays(after_success=0.01, after_failure=0.01, longest=0.05)


class Inbox:
    """A destination that can be out of reach, hang, or forget; it keeps the steps that arrive."""

    def __init__(self):
        self.steps = []
        self.tries = []
        self.problem = None
        self.resume = threading.Event()
        self.resume.set()

    def send(self, records):
        self.tries.append(time.monotonic())
        self.resume.wait(600)
        if isinstance(self.problem, Forgotten):
            self.problem, self.steps = None, []
            raise Forgotten
        if self.problem:
            raise self.problem
        self.steps += [record["step"] for record in records]


@pytest.fixture
def spool(tmp_path):
    return Spool(tmp_path, "server")


@pytest.fixture
def inbox():
    box = Inbox()
    yield box
    box.resume.set()  # lets a thread that hangs end


def sender_for(spool, inbox, delays=QUICK):
    progress = DeliveryProgress.load(spool.path.with_suffix(".sent.json"), "here", spool)
    sender = Sender(Delivery(spool, progress, inbox), "the server", delays)
    sender.start()
    return sender


def log(spool, sender, *steps):
    for step in steps:
        spool.metrics(step, {"loss": 1.0}, "train")
        sender.wake()


def until(condition, seconds=300):
    """Waits until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition never became true"
        time.sleep(0.005)


def test_everything_arrives_in_order_while_the_run_trains(spool, inbox):
    sender = sender_for(spool, inbox)
    log(spool, sender, 1, 2)
    until(lambda: inbox.steps == [1, 2])
    log(spool, sender, 3)
    until(lambda: inbox.steps == [1, 2, 3])
    sender.close(300)


def test_closing_sends_the_rest_and_the_next_sender_sends_nothing_again(spool, inbox):
    sender = sender_for(spool, inbox)
    log(spool, sender, *range(1, 51))
    sender.close(300)
    assert inbox.steps == list(range(1, 51))
    sender = sender_for(spool, inbox)
    log(spool, sender, 51)
    sender.close(300)
    assert inbox.steps == list(range(1, 52))


def test_an_outage_is_logged_once_and_so_is_its_end(spool, inbox, caplog):
    inbox.problem = ConnectionError("refused")
    sender = sender_for(spool, inbox)
    log(spool, sender, 1, 2, 3)
    until(lambda: len(inbox.tries) > 4)
    inbox.problem = None
    until(lambda: inbox.steps == [1, 2, 3])
    until(lambda: len(caplog.messages) == 2)
    assert caplog.messages[0] == "the server cannot be reached (refused); points are kept on disk, training continues"
    assert caplog.messages[1].endswith("3 points sent")
    log(spool, sender, 4)
    sender.close(300)
    assert inbox.steps == [1, 2, 3, 4]
    assert len(caplog.messages) == 2


def test_pauses_grow_after_failures(spool, inbox):
    inbox.problem = ConnectionError("refused")
    sender = sender_for(spool, inbox, SendDelays(after_failure=0.05, longest=0.2))
    log(spool, sender, 1)
    until(lambda: len(inbox.tries) == 6)
    waits = [after - before for before, after in zip(inbox.tries, inbox.tries[1:], strict=False)]
    assert all(wait >= least for wait, least in zip(waits, (0.05, 0.1, 0.2, 0.2, 0.2), strict=True))
    sender.close(300)
    assert sender._wait_after_failure() == 0.2  # after six failures, 1.6 without the limit


def test_a_backlog_is_sent_without_a_pause(spool, inbox):
    for step in range(1, 5001):
        spool.metrics(step, {"loss": 1.0}, "train")
    sender = sender_for(spool, inbox, SendDelays(after_success=600))
    until(lambda: len(inbox.steps) == 5000)
    assert len(inbox.tries) > 5
    sender.close(300)


def test_closing_does_not_wait_for_a_server_that_is_gone(spool, inbox):
    inbox.problem = ConnectionError("refused")
    sender = sender_for(spool, inbox, SendDelays(after_failure=600))
    log(spool, sender, 1)
    until(lambda: inbox.tries)
    start = time.monotonic()
    sender.close(600)
    assert time.monotonic() - start < 300
    assert len(inbox.tries) == 2  # one last try


def test_closing_does_not_wait_for_a_request_that_hangs(spool, inbox, caplog):
    inbox.resume.clear()
    sender = sender_for(spool, inbox)
    log(spool, sender, 1)
    until(lambda: inbox.tries)
    start = time.monotonic()
    sender.close(0.2)
    assert 0.2 <= time.monotonic() - start < 300
    inbox.problem = ConnectionError("too late")
    inbox.resume.set()
    second = sender_for(spool, inbox)  # waits until the first has released the lock
    until(lambda: len(inbox.tries) > 1)
    inbox.problem = None
    until(lambda: inbox.steps == [1])
    second.close(300)


def test_only_one_delivers(spool, inbox):
    sender = sender_for(spool, inbox)
    log(spool, sender, 1)
    until(lambda: inbox.steps)
    other = Delivery(spool, DeliveryProgress(spool.path.with_suffix(".sent.json"), "here"), inbox)
    assert not other.take_over()
    sender.close(300)
    assert other.take_over()
    other.hand_over()


def test_what_the_server_forgot_is_sent_again(spool, inbox):
    sender = sender_for(spool, inbox)
    log(spool, sender, 1, 2)
    until(lambda: inbox.steps == [1, 2])
    inbox.problem = Forgotten()
    log(spool, sender, 3)
    until(lambda: inbox.steps == [1, 2, 3])
    sender.close(300)


def test_a_crash_before_progress_is_saved_sends_again(spool, inbox):
    """Delivery is at least once: the destination drops repeats."""
    spool.metrics(1, {"loss": 1.0}, "train")
    path = spool.path.with_suffix(".sent.json")
    progress = DeliveryProgress(path / "not" / "writable", "here")
    path.write_text("a file, so that nothing can be written below it")
    with pytest.raises(OSError, match=r"sent\.json"):
        Delivery(spool, progress, inbox).step()
    assert inbox.steps == [1]
    path.unlink()
    assert len(Delivery(spool, DeliveryProgress(path, "here"), inbox).step().records) == 1
    assert inbox.steps == [1, 1]
