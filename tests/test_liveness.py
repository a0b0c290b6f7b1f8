"""Whether another process is alive: by the kernel's locks, by the table of processes, and by its silence."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from everstep import liveness
from everstep.liveness import SignsOfLife, is_gone, process_identity

pytestmark = pytest.mark.slow


WAIT = [sys.executable, "-c", "input()"]


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which waits until its input ends."""
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE, process_group=0) as process:
        yield process
        process.kill()


def eventually(condition) -> bool:
    """Whether a condition becomes true."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


# -- locks -------------------------------------------------------------------------------------------------------------


def test_a_lock_is_held_until_it_is_closed(tmp_path):
    path = tmp_path / "lock"
    assert not liveness.is_locked(path)
    lock = liveness.try_lock(path)
    assert liveness.is_locked(path)
    assert liveness.try_lock(path) is None
    os.close(lock)
    assert not liveness.is_locked(path)
    os.close(liveness.wait_for_lock(path))


def test_a_lock_is_held_as_long_as_a_process_lives_that_was_started_with_it(tmp_path):
    path = tmp_path / "lock"
    lock = liveness.try_lock(path)
    with subprocess.Popen(WAIT, stdin=subprocess.PIPE, pass_fds=(lock,)) as process:
        os.close(lock)
        assert liveness.try_lock(path) is None
        process.kill()
    assert not liveness.is_locked(path)
    os.close(liveness.try_lock(path))


# -- processes ---------------------------------------------------------------------------------------------------------


def test_a_process_is_gone_when_it_has_ended_even_before_it_is_waited_for(child):
    identity = process_identity(child.pid)
    assert not is_gone(identity)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(identity)
    child.wait()
    assert is_gone(identity)


def test_a_number_that_is_used_again_is_another_process():
    assert is_gone({**process_identity(), "start": "1"})


@pytest.mark.parametrize(
    "other",
    [
        *({name: value} for name, value in (("host", "elsewhere"), ("boot", "another"), ("namespace", "pid:[1]"))),
        *({name: ""} for name in ("host", "boot", "namespace", "start")),
        {"pid": None},
        {"pid": "x"},
    ],
    ids=str,
)
def test_of_another_machine_boot_or_container_nothing_is_concluded(other):
    identity = {**process_identity(), "pid": 2**22 + 1, "start": "1"}  # larger than any number of Linux
    assert is_gone(identity)
    assert not is_gone({**identity, **other})


def test_beside_a_lock_the_number_suffices():
    """As in the records of earlier versions, which have no more."""
    here = socket.gethostname()
    assert is_gone({"host": here, "pid": 2**22 + 1}, number_suffices=True)
    assert not is_gone({"host": here, "pid": os.getpid()}, number_suffices=True)
    assert not is_gone({"host": "elsewhere", "pid": 2**22 + 1}, number_suffices=True)
    assert not is_gone({"host": here}, number_suffices=True)
    another_container = {**process_identity(), "namespace": "pid:[1]", "pid": 2**22 + 1}
    assert not is_gone(another_container, number_suffices=True)


def test_only_this_process_is_this_process(child):
    assert liveness.is_this_process(process_identity())
    assert not liveness.is_this_process(process_identity(child.pid))
    assert not liveness.is_this_process({"host": socket.gethostname(), "pid": os.getpid()})


def test_a_stopped_process(child):
    assert not liveness.is_stopped(child.pid)
    child.send_signal(signal.SIGSTOP)
    assert eventually(lambda: liveness.is_stopped(child.pid))
    child.kill()
    child.wait()
    assert not liveness.is_stopped(child.pid)


def test_a_group_lives_as_long_as_one_of_its_processes():
    words = ["sh", "-c", "sleep 600 & echo $!"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, process_group=0) as leader:
        assert liveness.is_group_alive(leader.pid)
        left = int(leader.stdout.readline())
        leader.wait()
        assert liveness.is_group_alive(leader.pid)
        os.kill(left, signal.SIGKILL)
        assert eventually(lambda: not liveness.is_group_alive(leader.pid))


def test_a_process_is_orphaned_when_its_parent_is_gone():
    code = "import os, sys; from everstep import liveness; print(liveness.is_orphaned(int(sys.argv[1])))"
    for parent, expected in ((os.getpid(), "False\n"), (os.getppid(), "True\n")):
        words = [sys.executable, "-c", code, str(parent)]
        assert subprocess.run(words, capture_output=True, text=True, check=True).stdout == expected


# -- silence -----------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that only its pauses move."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now

    def sleeping(self, seconds):
        def wait(_):
            self.now += seconds
            return "woken"

        return wait


def test_who_says_nothing_new_is_silent():
    clock = Clock()
    signs = SignsOfLife({1: "", 2: ""}, clock)
    for beat in range(5):
        assert signs.pause(2.0, clock.sleeping(2.0)) == "woken"
        assert signs.hear(1, f"{beat}")
        assert signs.hear(2, "the same") == (beat == 0)
    assert signs.silent(7.0) == [2]
    assert signs.silent(8.0) == []


def test_the_time_in_which_this_process_stood_still_is_no_silence_of_others():
    clock = Clock()
    signs = SignsOfLife({1: ""}, clock)
    signs.pause(2.0, clock.sleeping(3600))
    assert signs.silent(2.5) == []
    signs.pause(2.0, clock.sleeping(2.0))
    assert signs.silent(3.5) == [1]


def test_a_slow_pause_is_no_standstill():
    clock = Clock()
    signs = SignsOfLife({1: ""}, clock)
    signs.pause(2.0, clock.sleeping(5.0))
    assert signs.silent(4.0) == [1]


def test_times_that_others_have_written():
    assert liveness.was_recent(time.time() - 100, 300)
    assert liveness.was_recent(time.time() + 3600, 300)  # of a clock that is ahead
    assert not liveness.was_recent(time.time() - 400, 300)
