"""One machine at a time: which process holds a lease, which may take it over, and what a loser may still write."""

import contextlib
import json
import os
import subprocess
import sys
import time

import pytest
from tests.checkpoint.remote.machines import begin_run, remote_steps, save

from everstep import liveness
from everstep.checkpoint.remote.cache import Copy
from everstep.checkpoint.remote.lease import LEASE, HeldStore, Lease, LostLease
from everstep.checkpoint.remote.mirror import Mirror, Uploader
from everstep.checkpoint.remote.store import INCOMING, Store
from everstep.errors import UsageError
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.slow, pytest.mark.stores("file")]

LONG = 300  # an interval that no test waits for
ALIVE = 1.0  # an interval at which also a busy machine renews in time


@pytest.fixture(autouse=True)
def _quick(monkeypatch, tmp_path):
    monkeypatch.setenv("EVERSTEP_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("EVERSTEP_UPLOAD_SECONDS", "0.2")


@contextlib.contextmanager
def elsewhere():
    """Runs the block as if on another machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("everstep.liveness.socket.gethostname", lambda: "elsewhere")
        yield


def held_by(store, **holder):
    """Writes the lease of another process."""
    document = {**liveness.process_identity(), "token": "other", "interval": 0.2, **holder}
    store.put_bytes(LEASE, json.dumps(document).encode())


def seconds_to_acquire(store):
    began = time.monotonic()
    Lease(store, 0.2).acquire()
    return time.monotonic() - began


def test_a_late_release_does_not_remove_the_next_lease(place, monkeypatch):
    """The store delays the removal of the lease until the next attempt has started."""
    monkeypatch.setattr("everstep.checkpoint.remote.lease._SECONDS_TO_RELEASE", 0.1)
    url = place.url()
    store, slow = Store(url), Store(url)
    first, second = Lease(slow, 0.2), Lease(store, 0.2)
    first.acquire()
    delete = slow.delete
    monkeypatch.setattr(slow, "delete", lambda names: (time.sleep(0.5), delete(names)))
    first.release()
    second.acquire()
    time.sleep(0.7)
    second.renew()


def test_a_lease_that_is_not_renewed_is_taken_over(place, caplog):
    store = Store(place.url())
    dead, alive = Lease(store, 0.2), Lease(store, 0.2)
    with elsewhere():
        dead.acquire()
    began = time.monotonic()
    alive.acquire()
    assert 0.6 < time.monotonic() - began < 300
    assert "waiting up to 1 s" in caplog.text
    with pytest.raises(LostLease, match=r"is now being trained by process \d+ on host "):
        dead.renew()
    alive.renew()
    alive.release()
    assert store.listing() == {}


def test_a_lease_of_a_dead_process_of_this_machine_is_taken_over_at_once(place):
    store = Store(place.url())
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    holder = liveness.process_identity(child.pid)
    assert not liveness.is_gone(holder)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert liveness.is_gone(holder)  # even while it is a zombie
    child.communicate()
    assert liveness.is_gone(holder)
    held_by(store, **holder, interval=LONG)
    assert seconds_to_acquire(store) < LONG


@pytest.mark.parametrize(
    "holder",
    [{"host": "elsewhere"}, {"boot": "another"}, {"namespace": "pid:[1]"}, {"boot": ""}, {"start": ""}],
    ids=lambda holder: "-".join(holder),
)
def test_a_process_of_another_container_or_boot_is_waited_for(place, holder):
    """That there is no such process on this machine proves nothing."""
    store = Store(place.url())
    held_by(store, **{"pid": 2**22 + 1, "start": "1", **holder})  # larger than any number of Linux
    assert seconds_to_acquire(store) > 0.55


def test_a_reused_process_number_is_another_process(place):
    store = Store(place.url())
    held_by(store, pid=os.getpid(), start="1", interval=LONG)
    assert seconds_to_acquire(store) < LONG


def test_a_process_takes_back_a_lease_that_it_could_not_release(place):
    store = Store(place.url())
    left = Lease(store, LONG)
    left.acquire()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(left, "_release", lambda: None)  # the store does not answer
        left.release()
    assert seconds_to_acquire(store) < LONG


def test_a_lease_that_this_process_holds_is_not_taken_over(place):
    store = Store(place.url())
    held = Lease(store, ALIVE)
    held.acquire()
    held.keep()
    with raises_problem(key=store.url, reason="is being trained by process"):
        Lease(store, 0.2).acquire()
    held.release()


def test_clocks_are_not_compared(place):
    """A machine whose clock is an hour behind, and which renews its lease, is not taken for dead."""
    store = Store(place.url())
    slow = Lease(store, ALIVE)
    text = slow._text
    slow._text = lambda: json.dumps({**json.loads(text()), "time": time.time() - 3600}).encode()
    with elsewhere():
        slow.acquire()
        slow.keep()
        with raises_problem(key=store.url, reason="is being trained by process"):
            Lease(store, 0.2).acquire()
        slow.release()


def test_a_machine_that_stood_still_while_it_waited_does_not_take_over_a_lease_that_is_renewed(place, monkeypatch):
    """As after a SIGSTOP: much time has passed, but it has not watched for long enough."""
    stopped = [0.0]

    class Stopped(liveness.SignsOfLife):
        def __init__(self, last):
            super().__init__(last, lambda: time.monotonic() + stopped[0])

        def pause(self, seconds):
            def wait(seconds):
                time.sleep(seconds)
                stopped[0] = 3600.0

            super().pause(seconds, wait)

    monkeypatch.setattr("everstep.checkpoint.remote.lease.SignsOfLife", Stopped)
    store = Store(place.url())
    with elsewhere():
        held = Lease(store, ALIVE)
        held.acquire()
        held.keep()
    with raises_problem(key=store.url, reason="is being trained by process"):
        Lease(store, 0.2).acquire()
    held.release()


# -- during uploads ----------------------------------------------------------------------------------------------------


@pytest.fixture
def training_machine(place, request):
    """A machine that trains: its lease, and its mirror; a parameter sets the lease's interval."""
    url = place.url()
    lease = Lease(Store(url), getattr(request, "param", 0.2))
    lease.acquire()
    mirror = Mirror(HeldStore(url, lease), Copy(url))
    mirror.fetch()
    begin_run(mirror.directory)
    yield lease, mirror
    lease.release()


@contextlib.contextmanager
def before(method, prefix, action):
    """Inside the block, calls `action` before objects are transferred whose names start with `prefix`."""
    original = getattr(Store, method)

    def disturbed(store, name, *args):
        if name.startswith(prefix):
            action()
        return original(store, name, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, method, disturbed)
        yield


def refused(url):
    """Whether a second machine finds the first one alive."""
    with elsewhere():
        try:
            Lease(Store(url), 0.2).acquire()
        except UsageError:
            return True
    return False


@pytest.mark.parametrize("training_machine", [ALIVE], indirect=True)
def test_a_lease_is_kept_during_long_transfers(training_machine):
    """A machine whose upload or download takes longer than three renewals is not taken for dead."""
    lease, mirror = training_machine
    save(mirror.directory, 10)
    lease.keep()
    seen = []
    with before("put", "checkpoints/10/state", lambda: seen.append(refused(mirror.store.url))):
        uploader = Uploader(mirror, lease)
        uploader.start()
        assert uploader.close() is None
    with before("get", "checkpoints/10/meta", lambda: seen.append(refused(mirror.store.url))):
        other = Mirror(mirror.store, Copy(f"{mirror.store.url}-copy"))
        other.fetch()
    assert seen == [True, True]
    assert remote_steps(mirror.store.url) == [10]


def taken_over(url):
    with elsewhere():
        Store(url).put_bytes(
            LEASE, json.dumps({**liveness.process_identity(), "token": "other", "interval": 60}).encode()
        )


def test_a_machine_that_has_lost_its_lease_completes_no_checkpoint(training_machine):
    check_no_marker(training_machine, "checkpoints/20/meta")


def test_a_machine_that_has_lost_its_lease_does_not_write_the_index(training_machine):
    check_no_marker(training_machine, "history.csv")


@pytest.mark.stores("gs")
def test_a_machine_that_loses_its_lease_during_the_upload_of_a_manifest_does_not_complete_it(training_machine):
    check_no_marker(training_machine, f"{INCOMING}/checkpoints/20/manifest.json")


def check_no_marker(training_machine, at):
    """Loses the lease before the object `at` is uploaded: no object that completes others may follow."""
    _, mirror = training_machine
    save(mirror.directory, 10)
    mirror.commit()
    save(mirror.directory, 20)
    indexes = []

    def lost():
        indexes.append(mirror.store.get_bytes(".everstep/index.json"))
        taken_over(mirror.store.url)

    with before("put", at, lost), pytest.raises(LostLease, match="on host elsewhere"):
        mirror.commit()
    assert remote_steps(mirror.store.url) == [10]
    assert indexes == [mirror.store.get_bytes(".everstep/index.json")]


def test_a_machine_that_has_lost_its_lease_sends_no_more_objects(training_machine):
    """Not even parts of an incomplete checkpoint, once a renewal was missed: the store belongs to another machine."""
    lease, mirror = training_machine
    save(mirror.directory, 10)
    mirror.commit()
    taken_over(mirror.store.url)
    time.sleep(0.45)
    sent = []
    with before("_put", "", lambda: sent.append(1)), pytest.raises(LostLease):
        mirror.store.put("checkpoints/20/meta", mirror.directory / "run.json")
    with pytest.raises(LostLease):
        mirror.store.delete(["history.csv"])
    assert sent == []
    assert "history.csv" in mirror.store.listing()


def test_a_lease_that_another_machine_took_and_released_is_lost(training_machine):
    lease, mirror = training_machine
    Store(mirror.store.url).delete([LEASE])
    save(mirror.directory, 10)
    with pytest.raises(LostLease, match="is gone: another process has trained there"):
        mirror.commit()
    assert remote_steps(mirror.store.url) == []


def test_nothing_is_written_after_the_release(training_machine):
    lease, mirror = training_machine
    lease.release()
    with pytest.raises(LostLease, match="was released"):
        mirror.store.put("checkpoints/20/meta", mirror.directory / "run.json")
