"""Whether a process is at work is seen without getting in its way."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from everstep.liveness import process_identity
from everstep.run.lock import RunLock, is_held

pytestmark = pytest.mark.slow

HOLD = """
import sys, time
from everstep.liveness import process_identity
from everstep.run.lock import RunLock
lock = RunLock(sys.argv[1])
lock.acquire()
print("held")
time.sleep(60)
"""


def test_a_process_that_holds_it_and_is_killed(tmp_path: Path) -> None:
    assert not is_held(tmp_path)
    words = [sys.executable, "-u", "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert is_held(tmp_path)
        process.send_signal(signal.SIGKILL)
    assert not is_held(tmp_path)
    assert json.loads((tmp_path / ".lock.json").read_text())["pid"] == process.pid, "it had no time to tidy up"


def test_this_process(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        assert is_held(tmp_path)
    assert not is_held(tmp_path)
    assert list(tmp_path.glob(".lock.json")) == []


def test_a_number_that_is_another_process_by_now(tmp_path: Path) -> None:
    with RunLock(tmp_path):
        signature = json.loads((tmp_path / ".lock.json").read_text())
    for other in (os.getppid(), os.getpid()):
        (tmp_path / ".lock.json").write_text(json.dumps({**signature, **process_identity(other)}))
        assert not is_held(tmp_path), "the process lives, but the lock is free"
    (tmp_path / ".lock.json").write_text(json.dumps({**signature, "start": "1"}))
    assert not is_held(tmp_path), "the process that took the lock has ended"
    with RunLock(tmp_path):
        pass


def test_of_another_machine_the_signature_counts(tmp_path: Path) -> None:
    (tmp_path / ".lock.json").write_text(json.dumps({"pid": 1, "host": f"not-{socket.gethostname()}"}))
    assert is_held(tmp_path)
    (tmp_path / ".lock.json").write_text("{")
    assert not is_held(tmp_path)
