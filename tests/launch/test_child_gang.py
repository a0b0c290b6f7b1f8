"""Several processes as one child of the supervisor; the command is a script without Keras."""

import os
import signal
import socket
import sys
import textwrap
import time
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.launch import child_gang
from everstep.launch.child_gang import ChildGang, LocalGang, ProcessCount, reserve_port
from everstep.run.parent_process import SUPERVISOR

pytestmark = pytest.mark.slow

BEGIN = """
import json, os, pathlib, signal, sys, time
rank = int(os.environ["EVERSTEP_PROCESS_ID"])
size = int(os.environ["EVERSTEP_NUM_PROCESSES"])
here = pathlib.Path(sys.argv[1])
(here / f"{rank}.pid").write_text(str(os.getpid()))
"""


def start(folder: Path, code: str, size: int = 3) -> ChildGang:
    command = [sys.executable, "-c", BEGIN + textwrap.dedent(code), str(folder)]
    return LocalGang(command, {**os.environ, SUPERVISOR: str(folder / "link.json")}, ProcessCount(size, size))


def pid(folder: Path, rank: int) -> int:
    path, end = folder / f"{rank}.pid", time.monotonic() + 60
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return int(path.read_text())


def test_all_are_done(tmp_path):
    code = """
    if rank == 0:
        run = here / "run"
        run.mkdir()
        (here / "link.json").write_text(json.dumps({"model_dir": str(run)}))
    else:
        while not (here / "link.json").exists():
            time.sleep(0.02)
        print(f"rank {rank} of {size} at {os.environ['EVERSTEP_COORDINATOR']}", os.environ.get("EVERSTEP_SUPERVISOR"))
    """
    assert start(tmp_path, code).wait().returncode == 0
    text = (tmp_path / "run" / "processes" / "2.log").read_text()
    assert text.startswith("rank 2 of 3 at 127.0.0.1:")
    assert text.endswith(" None\n")
    assert not (tmp_path / "run" / "processes" / "0.log").exists()


def test_a_killed_process_is_named_and_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(child_gang, "_END_SECONDS", 0.5)
    gang = start(tmp_path, "time.sleep(100)")
    killed = pid(tmp_path, 1)
    os.kill(killed, signal.SIGKILL)
    status = gang.wait()
    assert status.who.startswith(f"rank 1 (pid {killed} on ")
    assert status.reason == "SIGKILL"
    assert not gang.end_process_group()


def test_who_fails_first_counts_not_who_follows(tmp_path):
    status = start(tmp_path, "sys.exit({0: 1, 1: 7, 2: 1}[rank])").wait()
    assert (status.returncode, status.who.partition(" (")[0]) == (7, "rank 1")


def test_bad_input_of_one_process_alone_is_shown(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(child_gang, "_END_SECONDS", 0.5)
    code = """
    if rank == 1:
        sys.exit(print("everstep: error: no such file", file=sys.stderr) or 2)
    time.sleep(100)
    """
    assert start(tmp_path, code).wait().returncode == 2
    assert capfd.readouterr().err == "[1] everstep: error: no such file\n"


def test_a_frozen_process_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(child_gang, "_END_SECONDS", 0.5)
    monkeypatch.setattr(child_gang, "_FROZEN_SECONDS", 0.5)
    gang = start(tmp_path, "time.sleep(100)")
    frozen = pid(tmp_path, 2)
    os.kill(frozen, signal.SIGSTOP)
    status = gang.wait()
    assert status.who.startswith(f"rank 2 (pid {frozen} on ")
    assert "frozen" in str(status)


def test_a_signal_reaches_all(tmp_path):
    code = """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    (here / f"{rank}.ready").touch()
    time.sleep(100)
    """
    gang = start(tmp_path, code)
    while len(list(tmp_path.glob("*.ready"))) < 3:
        time.sleep(0.02)
    gang.send(signal.SIGTERM)
    assert gang.wait().exit_code == 143


def test_a_reserved_port_is_free_for_its_server_alone():
    with reserve_port("127.0.0.1") as held:
        port = held.getsockname()[1]
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        socket.create_server(("127.0.0.1", port)).close()
        socket.create_server(("127.0.0.1", port)).close()


def test_count(monkeypatch, caplog):
    assert ProcessCount.parse("4") == ProcessCount(4, 4)
    assert ProcessCount.parse("2..8") == ProcessCount(2, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2")
    assert ProcessCount.parse("2..8").now() == 3
    assert ProcessCount.parse("4..8").now() == 4
    assert ProcessCount.parse("1..2").now() == 2
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5")
    assert ProcessCount(2, 8, batch_size=32).now() == 4
    assert ProcessCount(2, 8, batch_size=31).now() == 6
    assert ProcessCount(2, 8).now() == 6
    assert "4 of 6 possible processes are started: a training batch of 32 samples" in caplog.text
    for wrong in ("0", "two", "3..2", "2..", "-1"):
        with pytest.raises(UsageError) as raised:
            ProcessCount.parse(wrong)
        assert raised.value.key == "--processes"
