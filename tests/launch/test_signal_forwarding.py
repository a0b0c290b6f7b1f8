"""Signals to a supervisor: they are passed on to the command, and some forbid a restart."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from crashing import child, starts, supervised, wait_for

from everstep.launch import child as child_module
from everstep.launch.supervisor import supervise

pytestmark = pytest.mark.slow

HANG = """
def note(number, frame):
    with open("signals", "a") as file: file.write(f"{number} ")
    if number in (2, 15):
        time.sleep(0.3)
        sys.exit(128 + number)
for number in (1, 2, 10, 12, 15): signal.signal(number, note)
pathlib.Path("ready").write_text(str(os.getpid()))
while True: time.sleep(0.01)
"""


@pytest.fixture(autouse=True)
def handled_signals():
    """Signals are handled, even if the tests were started in the background or by `nohup`."""
    handlers = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_passed_on_once(number):
    with supervised(child(HANG)) as process:
        wait_for("ready")
        process.send_signal(signal.SIGUSR1)
        wait_for("signals", "10 ")
        process.send_signal(number)
        assert process.wait(300) == 128 + number
    assert Path("signals").read_text() == f"10 {int(number)} "
    assert starts() == 1


def test_a_ctrl_c_at_the_terminal_reaches_the_command_once():
    """The terminal sends it to the foreground group, which the command is not in."""
    with supervised(child(HANG), process_group=0) as process:
        wait_for("ready")
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(300) == 130
    assert Path("signals").read_text() == "2 "


def test_a_signal_to_the_command_alone_leads_to_a_restart():
    with supervised(child("if number > 1: sys.exit(0)\n" + HANG)) as process:
        os.kill(int(wait_for("ready")), signal.SIGTERM)
        assert process.wait(300) == 0
    assert starts() == 2


def test_a_command_that_a_forwarded_signal_ends_is_not_restarted():
    script = "pathlib.Path('ready').touch(); time.sleep(60)"
    with supervised(child(script)) as process:
        wait_for("ready")
        process.terminate()
        assert process.wait(300) == 143
    assert starts() == 1


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_during_the_pause_cancels_the_restart(number):
    with supervised(child("sys.exit(1)"), backoff=60, stderr=subprocess.PIPE, text=True) as process:
        assert "in 60 s" in process.stderr.readline()
        process.send_signal(number)
        assert process.wait(300) == 128 + number
        assert process.stderr.read() == f"everstep: not restarted: this process received {number.name}\n"
        process.stderr.close()
    assert starts() == 1


SIGNALLED = """
if number > 1: sys.exit(0)
seen = []
signal.signal(signal.{name}, lambda *_: seen.append(1))
os.kill(os.getppid(), signal.{name})
while not seen: time.sleep(0.01)
time.sleep({seconds})
{end}
"""
KILL = "os.kill(os.getpid(), 9)"


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2", "SIGHUP"])
def test_a_signal_that_the_command_survived_does_not_prevent_a_restart(monkeypatch, name):
    monkeypatch.setattr(child_module, "_OUTLIVED_SECONDS", 0.2)
    assert supervise(child(SIGNALLED.format(name=name, seconds=0.5, end=KILL)), 3, 0.01) == 0
    assert starts() == 2


@pytest.mark.parametrize(
    ("name", "seconds", "end", "code", "words"),
    [
        ("SIGUSR1", 0, KILL, 137, "was ended by SIGKILL ("),
        ("SIGTERM", 0.5, KILL, 137, "was ended by SIGKILL ("),
        ("SIGINT", 0.5, "sys.exit(1)", 1, "ended with exit code 1;"),
        ("SIGUSR1", 0.5, "sys.exit(138)", 138, "ended with exit code 138;"),
    ],
)
def test_a_signal_that_may_have_ended_it_prevents_a_restart(monkeypatch, capfd, name, seconds, end, code, words):
    """SIGTERM and SIGINT always count; so does SIGUSR1 if the exit code is 138, however long the command took."""
    monkeypatch.setattr(child_module, "_OUTLIVED_SECONDS", 0.2 if seconds else 60.0)
    assert supervise(child(SIGNALLED.format(name=name, seconds=seconds, end=end)), 3, 0.01) == code
    assert starts() == 1
    printed = capfd.readouterr().err
    assert f"everstep: the command {words}" in printed
    assert f"; not restarted: this process received {name}\n" in printed


def test_a_hangup_that_nohup_ignores_stays_ignored():
    with supervised(child(HANG), ignoring="HUP") as process:
        wait_for("ready")
        process.send_signal(signal.SIGHUP)
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 143
    assert Path("signals").read_text() == "15 "
