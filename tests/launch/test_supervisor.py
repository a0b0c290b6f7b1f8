"""Supervision of real processes that crash, kill themselves, hang and finish."""

import contextlib
import json
import math
import os
import pty
import signal
import threading
from pathlib import Path

import pytest
from crashing import COUNT, child, save, starts, supervised

from everstep.errors import NOTHING, UsageError
from everstep.launch import supervisor
from everstep.launch.supervisor import supervise
from everstep.run.lock import RunLock
from everstep.run.record import Run, read
from everstep.testing.problems import raises_problem

pytestmark = pytest.mark.slow

RUN = (
    COUNT
    + """
from everstep.run.lock import Heartbeat
from everstep.run.parent_process import announce
announce("run", {requeue})
heart = Heartbeat("run", share=1)
"""
)


def run_child(script, requeue=None):
    return child(script, RUN.format(requeue=requeue))


def test_a_successful_command_is_not_restarted(capfd):
    assert supervise(child("print('result'); print('note', file=sys.stderr)"), 3) == 0
    assert capfd.readouterr() == ("result\n", "note\n")
    assert starts() == 1


def test_bad_input_is_not_restarted():
    assert supervise(child("sys.exit(2)"), 3, 0.01) == 2
    assert starts() == 1


@pytest.mark.parametrize(
    ("end", "words"),
    [
        ("sys.exit(1)", "ended with exit code 1; restart"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "was ended by SIGKILL (most often the kernel, because memory ran out"),
        ("os.abort()", "was ended by SIGABRT (native code aborted"),
        ("sys.exit(137)", "ended with exit code 137 (SIGKILL: most often the kernel"),
        ("sys.exit(143)", "ended with exit code 143 (SIGTERM: a user or a scheduler requested a stop)"),
    ],
)
def test_a_dead_command_is_restarted(capfd, end, words):
    assert supervise(child(f"if number < 3: {end}"), 5, 0.01) == 0
    assert starts() == 3
    printed = capfd.readouterr().err
    assert f"everstep: the command {words}" in printed
    assert "restart 2 of 5 in 0.02 s" in printed


@pytest.mark.parametrize(("end", "code"), [("sys.exit(7)", 7), ("os.kill(os.getpid(), 9)", 137)])
def test_the_number_of_restarts_is_limited(capfd, end, code):
    assert supervise(child(end), 1, 0.01) == code
    assert starts() == 2
    assert "giving up: the limit of 1 restarts (--max-restarts) is reached" in capfd.readouterr().err
    assert supervise(child(end), 0, 0.01) == code
    assert starts() == 3


def test_a_crash_loop_ends_with_the_diagnosis(capfd):
    script = """
heart.beat(number + 20)
save("run", 20)
print("\\x1b[1mstep 1\\rstep 2\\rstep 21\\x1b[0m", "boom: 3 is no number", sep="\\n", file=sys.stderr, flush=True)
os.kill(os.getpid(), 9 if number > 1 else 6)
"""
    Path("run").mkdir()
    assert supervise(run_child(script), 50, 0.01) == 137
    assert starts() == 4
    printed = capfd.readouterr().err
    assert printed.count("boom") == 5, "four times live, once in the diagnosis"
    report = printed[printed.index("giving up") :].splitlines()
    assert report[0] == "giving up: 3 restarts in a row made no progress"
    assert report[1].startswith("  it was ended by SIGKILL (most often the kernel")
    assert report[1].endswith("at step 24, newest checkpoint: step 20")
    assert report[2] == "  all attempts: SIGABRT, SIGKILL, SIGKILL, SIGKILL"
    assert "save more often" in report[3]
    assert report[-2:] == ["  | step 21", "  | boom: 3 is no number"]


def test_a_new_checkpoint_resets_the_pause(capfd):
    script = """
if number in (3, 6): save("run", number)
sys.exit(1 if number < 9 else 0)
"""
    Path("run").mkdir()
    assert supervise(run_child(script), 50, 0.01) == 0
    pauses = [line.split(" in ")[1] for line in capfd.readouterr().err.splitlines()]
    assert pauses == [f"{seconds} s" for seconds in (0.01, 0.02, 0.01, 0.02, 0.04, 0.01, 0.02, 0.04)]


def test_an_earlier_checkpoint_is_no_progress():
    save("run", 500)
    assert supervise(run_child("sys.exit(1)"), 50, 0.01) == 1
    assert starts() == 4


def test_an_incomplete_checkpoint_is_no_progress():
    script = """
os.makedirs(f"run/checkpoints/{number}", exist_ok=True)  # without a manifest, nothing resumes from it
sys.exit(1)
"""
    Path("run").mkdir()
    assert supervise(run_child(script), 50, 0.01) == 1
    assert starts() == 4


def test_each_run_directory_of_a_command_has_its_own_progress():
    script = """
from everstep.run.parent_process import announce
name, step = ("a", 10000) if number == 1 else ("b", 1000 * number)
announce(name)
save(name, step)
sys.exit(1 if number < 7 else 0)
"""
    assert supervise(child(script), 50, 0.01) == 0
    assert starts() == 7


def test_a_checkpoint_of_an_earlier_run_directory_is_progress():
    script = """
from everstep.run.parent_process import announce
if number > 1: save(f"fold{number - 1}", 9)
os.makedirs(f"fold{number}")
announce(f"fold{number}")
sys.exit(1 if number < 7 else 0)
"""
    assert supervise(child(script), 50, 0.01) == 0
    assert starts() == 7


def test_another_run_directory_without_a_checkpoint_is_no_progress():
    script = """
from everstep.run.parent_process import announce
announce("ab"[number % 2])
sys.exit(1)
"""
    save("a", 5)
    assert supervise(child(script), 50, 0.01) == 1
    assert starts() == 5, "the first restart that announces a run with a checkpoint counts as progress"


@pytest.mark.parametrize(
    ("backoff", "pauses"), [(1, [1, 2, 4, 8, 16, 32, 60, 60]), (25, [25, 50, 60]), (90, [90, 90]), (0, [0, 0])]
)
def test_pauses_double_up_to_a_minute(backoff, pauses):
    assert [supervisor.pause(backoff, stalls) for stalls in range(len(pauses))] == pauses


def test_a_long_life_is_progress_for_a_command_that_announces_no_run(monkeypatch):
    monkeypatch.setattr(supervisor, "_LONG_LIFE", 0.0)
    assert supervise(child("sys.exit(1 if number < 7 else 0)"), 50, 0.001) == 0


def test_the_requeue_exit_code_is_passed_on():
    Path("run").mkdir()
    assert supervise(run_child("sys.exit(85)", requeue=85), 50, 0.01) == 85
    assert starts() == 1


def test_a_run_that_a_hook_has_stopped_is_not_restarted(capfd):
    script = """
save("run", 20)
announce("run", stop_reason="it is 07:00")
sys.exit(143)
"""
    Path("run").mkdir()
    assert supervise(run_child(script), 50, 0.01) == 143
    assert starts() == 1
    said = (
        "everstep: not restarted: it is 07:00 at step 0, newest checkpoint: step 20; the same command continues the run"
    )
    assert said in capfd.readouterr().err


RECORD = """
from everstep.run.record import Run
record = Run.open("run", "mnist/mlp", "jax")
record.begin(0, "", code={{}})
{}
"""


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os.kill(os.getpid(), 9)", "SIGKILL"),
        ("os._exit(7)", "exit 7"),
        ("record.finish('failed', 'ValueError: x'); sys.exit(1)", "ValueError: x"),
    ],
)
def test_the_record_has_the_reason_of_a_death(end, reason):
    supervise(run_child(RECORD.format(end)), 0)
    [attempt] = read("run")["attempts"]
    assert attempt["reason"] == reason


def test_a_death_before_the_attempt_began_is_not_recorded_for_an_earlier_one():
    run = Run.open("run", "mnist/mlp", "jax")
    run.begin(0, "", code={})
    record = json.loads(Path("run/run.json").read_text())
    record["attempts"][0]["started"] = "2020-01-01T00:00:00.000+00:00"
    Path("run/run.json").write_text(json.dumps(record))
    supervise(run_child("os._exit(7)"), 0)
    assert [attempt["reason"] for attempt in read("run")["attempts"]] == [None]


def test_the_record_of_a_live_run_is_not_changed():
    with RunLock(Path("run")):
        supervise(run_child(RECORD.format("os._exit(7)")), 0)
        assert [attempt["reason"] for attempt in read("run")["attempts"]] == [None]


def test_orphans_of_a_dead_command_are_ended_before_the_restart(capfd):
    script = """
if number > 1:
    sys.exit(0 if pathlib.Path("saved").exists() else 2)
import subprocess
worker = '''
import signal, sys, pathlib, time
def save(*_):
    time.sleep(0.2); pathlib.Path("saved").touch(); sys.exit()
signal.signal(signal.SIGTERM, save)
pathlib.Path("working").touch()
time.sleep(60)
'''
subprocess.Popen([sys.executable, "-c", worker])
while not pathlib.Path("working").exists(): time.sleep(0.01)
os.kill(os.getpid(), 9)
"""
    assert supervise(child(script), 1, 0.01) == 0
    assert "the processes that the command left running were ended as well" in capfd.readouterr().err


def test_a_successful_command_may_leave_processes_running():
    script = """
import subprocess
left = subprocess.Popen(["sleep", "30"], stderr=subprocess.DEVNULL)
pathlib.Path("left").write_text(str(left.pid))
"""
    assert supervise(child(script), 1) == 0
    os.kill(int(Path("left").read_text()), signal.SIGKILL)  # would fail if it were gone


def test_supervision_works_in_a_thread():
    codes = []
    thread = threading.Thread(target=lambda: codes.append(supervise(child("sys.exit(number < 2)"), 2, 0.01)))
    thread.start()
    thread.join(300)
    assert codes == [0]


def test_the_command_gets_a_terminal_if_we_have_one():
    ours, childs = pty.openpty()
    script = "sys.exit(0 if os.isatty(2) and os.read(0, 1) == b'' and os.write(2, b'one\\ntwo\\rthree\\n') else 1)"
    with supervised(child(script), 0, stderr=childs) as process:
        assert process.wait(300) == 0
    os.close(childs)
    text = b""
    with contextlib.suppress(OSError):
        while data := os.read(ours, 1000):
            text += data
    os.close(ours)
    assert text == b"one\r\ntwo\rthree\r\n", "the real terminal adds carriage returns, the relay adds none"


@pytest.mark.parametrize(
    ("command", "restarts", "backoff", "key", "received", "reason"),
    [
        ([], 1, 1.0, "COMMAND", NOTHING, "no command is given"),
        (["no-such-program"], 1, 1.0, "COMMAND", "no-such-program", "cannot be started: No such file"),
        (["/"], 1, 1.0, "COMMAND", "/", "cannot be started: Permission denied"),
        (["a\0b"], 1, 1.0, "COMMAND", "a\0b", "cannot be started"),
        (["true"], -1, 1.0, "--max-restarts", -1, "must be 0 or more"),
        (["true"], 1, -1.0, "--backoff", -1.0, "must be 0 or more seconds"),
        (["true"], 1, math.inf, "--backoff", math.inf, "must be 0 or more seconds"),
    ],
)
def test_bad_requests(command, restarts, backoff, key, received, reason):
    with pytest.raises(UsageError) as error:
        supervise(command, restarts, backoff)
    assert (error.value.key, error.value.received) == (key, received)
    assert error.value.reason.startswith(reason)


def test_a_pause_that_is_no_number():
    with raises_problem(key="--backoff", reason="must be 0 or more seconds") as error:
        supervise(["true"], 1, math.nan)
    assert math.isnan(error.value.received)


def test_a_closed_standard_error_does_not_stop_the_supervisor():
    reader, writer = os.pipe()
    os.close(reader)
    with supervised(child("sys.exit(3 if number < 3 else 0)"), stderr=writer) as process:
        os.close(writer)
        assert process.wait(300) == 0
    assert starts() == 3
