"""Real processes hold, lose and are refused the lock of a directory."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from everstep.errors import UsageError
from everstep.run.lock import Heartbeat, RunLock, last_beat
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

HOLD = """
import os, subprocess, sys, time
from everstep.run.lock import RunLock
lock = RunLock(sys.argv[1])
lock.acquire()
lock.beat(41)
{more}
print("held", flush=True)
time.sleep(600)
"""


DEAD = '{"pid": 999999999, "host": "HERE", "since": "2030-01-01", "command": "everstep train"}'


@contextlib.contextmanager
def holder(directory, more=""):
    """A process that holds the lock, and the lines it printed."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD.format(more=more), str(directory)], stdout=subprocess.PIPE, text=True
    )
    try:
        lines = []
        while not lines or lines[-1] != "held":
            lines.append(process.stdout.readline().strip())
            assert lines[-1], "it died"
        yield process, lines
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_process_is_refused_with_the_name_of_the_first(tmp_path):
    with holder(tmp_path) as (process, _), pytest.raises(UsageError) as refused:
        RunLock(tmp_path).acquire()
    text = str(refused.value)
    assert f"{str(tmp_path)!r} is being trained by process {process.pid} on host {socket.gethostname()} since" in text
    assert "wait for it, or use another directory" in text
    assert "-c" in text


def test_a_killed_process_holds_nothing(tmp_path):
    with holder(tmp_path) as (process, _):
        process.kill()
        process.wait()
        assert (tmp_path / ".lock.json").exists(), "its record is stale now"
        with RunLock(tmp_path):
            assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == os.getpid()
    assert not (tmp_path / ".lock.json").exists()


@pytest.mark.parametrize(
    "start",
    [
        "child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, close_fds=False); print(child.pid)",
        "here, there = os.pipe()\nchild = os.fork()\n"
        "if child == 0: os.close(1); os.write(there, b'!'); time.sleep(600); os._exit(0)\n"
        "os.read(here, 1); print(child)",
    ],
    ids=["program", "fork"],
)
def test_child_processes_do_not_keep_the_lock(tmp_path, start):
    with holder(tmp_path, start) as (process, lines):
        child = int(lines[0])
        try:
            process.kill()
            process.wait()
            os.kill(child, 0)  # it lives
            with RunLock(tmp_path):
                pass
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_fork_that_ends_does_not_let_go_of_its_parents_lock(tmp_path):
    more = "child = os.fork()\nif child == 0: lock.release(); os._exit(0)\nos.waitpid(child, 0)"
    with holder(tmp_path, more), raises_problem(reason="is being trained by process"):
        RunLock(tmp_path).acquire()


def test_one_process_cannot_train_twice_in_it_either(tmp_path):
    with RunLock(tmp_path), raises_problem(reason=f"process {os.getpid()}"):
        RunLock(tmp_path).acquire()
    with RunLock(tmp_path) as lock:
        thread = threading.Thread(target=lock.release)
        thread.start()
        thread.join()
        with RunLock(tmp_path):
            pass
    lock.release()


@pytest.mark.parametrize("record", [None, "{", "[]", DEAD])
def test_a_damaged_lock_record_is_not_shown(tmp_path, record):
    with RunLock(tmp_path):
        path = tmp_path / ".lock.json"
        path.unlink() if record is None else path.write_text(record.replace("HERE", socket.gethostname()))
        begin = time.monotonic()
        with raises_problem(reason="is being trained by another process", remedy="wait"):
            RunLock(tmp_path).acquire()
        assert time.monotonic() - begin < 300


def test_a_record_from_another_host_is_believed(tmp_path):
    record = {"pid": 999999999, "host": "elsewhere", "since": "2030-01-01T00:00:00+00:00", "command": "everstep train"}
    with RunLock(tmp_path):
        (tmp_path / ".lock.json").write_text(json.dumps(record))
        with raises_problem(reason=r"process 999999999 on host elsewhere since 2030.*\(everstep train\)"):
            RunLock(tmp_path).acquire()


def test_a_place_that_cannot_be_locked_is_named(tmp_path):
    (tmp_path / "file").touch()
    with raises_problem(reason="cannot lock the run directory '.*file'"):
        RunLock(tmp_path / "file").acquire()


def test_a_directory_that_was_removed_is_let_go_of(tmp_path):
    with RunLock(tmp_path / "run") as lock:
        lock.beat(3)
        shutil.rmtree(tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_many_processes_at_once_one_wins(tmp_path):
    script = HOLD.format(more="")
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(6)
    ]
    try:
        deadline = time.monotonic() + 300
        while sum(racer.poll() is None for racer in racers) > 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        [winner] = [racer for racer in racers if racer.poll() is None]
        assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == winner.pid
    finally:
        for racer in racers:
            racer.kill()
            racer.wait()


def test_the_last_heartbeat_outlives_a_kill(tmp_path):
    assert last_beat(tmp_path) is None
    with holder(tmp_path) as (process, _):
        process.kill()
        process.wait()
    step, seconds = last_beat(tmp_path)
    assert step == 41
    assert abs(time.time() - seconds) < 300


def test_every_heartbeat_is_written_where_a_write_takes_no_time(tmp_path):
    heart = Heartbeat(tmp_path, clock=lambda: 5.0)
    for step in range(1, 20):
        heart.beat(step)
        assert last_beat(tmp_path)[0] == step
    size = (tmp_path / ".heartbeat").stat().st_size
    heart.beat(10**12)
    heart.close()
    heart.close()
    assert last_beat(tmp_path)[0] == 10**12
    assert (tmp_path / ".heartbeat").stat().st_size == size


def test_heartbeats_take_a_hundredth_of_the_time_of_a_slow_disk_and_none_is_missing_at_the_end(tmp_path, monkeypatch):
    now, written, write = [0.0], [], os.pwrite

    def slow_write(descriptor, line, offset):
        now[0] += 0.002
        written.append(int(line.split()[0]))
        return write(descriptor, line, offset)

    monkeypatch.setattr(os, "pwrite", slow_write)
    heart = Heartbeat(tmp_path, clock=lambda: now[0])
    for step in range(1, 1001):
        now[0] += 0.001
        heart.beat(step)
    assert 4 <= len(written) <= 6, "one of 2 ms in 200 ms"
    heart.close()
    assert last_beat(tmp_path)[0] == 1000


@pytest.mark.parametrize("content", ["", "7", "x" * 42, "\x00" * 42])
def test_a_damaged_heartbeat_is_none(tmp_path, content):
    (tmp_path / ".heartbeat").write_text(content)
    assert last_beat(tmp_path) is None


def test_a_heartbeat_in_a_missing_directory_does_not_fail(tmp_path):
    heart = Heartbeat(tmp_path / "missing")
    heart.beat(1)
    heart.close()
    assert last_beat(tmp_path / "missing") is None
