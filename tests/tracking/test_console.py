import contextlib
import io
import os
import re
import subprocess
import sys

import pytest

from everstep.tracking.console import ConsoleTracker


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 0.0
        self.reads = 0

    def __call__(self):
        self.reads += 1
        return self.now


def test_lines_in_a_log_file():
    out = io.StringIO()
    tracker = ConsoleTracker(5000, out)
    tracker.start(0)
    tracker.log(1200, {"loss": 0.314159265, "steps_per_second": 812.34, "lr": 1e-05}, "train")
    tracker.progress(1300)
    tracker.log(1200, {"validation_loss": float("nan")}, "validation")
    tracker.close()
    assert out.getvalue() == (
        "train | step:  1200 | steps/sec:  812.3 | loss: 0.31416 | lr: 1e-05\n"
        " eval | step:  1200 | validation_loss: nan\n"
    )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setenv("TERM", "xterm")
    return Terminal()


def visible(terminal):
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", terminal.getvalue())


def test_a_terminal_shows_progress_rate_and_time_left(terminal, clock):
    tracker = ConsoleTracker(1000, terminal, clock)
    tracker.start(200)
    for step in (300, 400, 500):
        clock.now += 1.0
        tracker.progress(step)
    tracker.log(500, {"loss": 0.5}, "train")
    tracker.close()
    shown = visible(terminal)
    assert "200/1000" in shown
    assert re.search(r"500/1000 100\.0 steps/s 0:00:05", shown)
    assert "train | step:   500 | loss: 0.5\n" in shown


def test_progress_is_redrawn_at_most_ten_times_a_second(terminal, clock):
    tracker = ConsoleTracker(100_000, terminal, clock)
    tracker.start(0)
    before = len(terminal.getvalue())
    for step in range(1, 1001):
        clock.now += 0.001
        tracker.progress(step)
    redraws = terminal.getvalue()[before:].count("/100000")
    assert 9 <= redraws <= 11
    tracker.close()


def test_closing_twice_or_before_the_start_is_fine(terminal, clock):
    tracker = ConsoleTracker(10, terminal, clock)
    tracker.close()
    tracker.start(0)
    tracker.close()
    tracker.close()
    tracker.log(10, {"loss": 1.0}, "train")
    assert terminal.getvalue().endswith("train | step:    10 | loss: 1\n")


def test_rich_is_not_loaded_without_a_terminal():
    code = """
import sys
from everstep.tracking.console import ConsoleTracker
tracker = ConsoleTracker(10)
tracker.start(0)
tracker.progress(1)
tracker.log(1, {"loss": 1.0}, "train")
print("rich" in sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
    assert result.stderr == "train | step:     1 | loss: 1\n"


@pytest.mark.parametrize("out", ["a pipe without a reader", "a full disk", "a closed file"])
def test_nobody_to_read_it_is_no_reason_to_stop(out):
    with broken(out) as stream:
        tracker = ConsoleTracker(10, stream)
        tracker.start(0)
        tracker.progress(1)
        tracker.log(1, {"loss": 1.0}, "train")
        tracker.flush()
        tracker.close()
        tracker.log(2, {"loss": 1.0}, "train")


def test_a_terminal_that_is_gone_is_no_reason_to_stop(clock):
    ours, theirs = os.openpty()
    with contextlib.suppress(OSError), open(theirs, "w") as terminal:
        tracker = ConsoleTracker(10, terminal, clock)
        tracker.start(0)
        os.close(ours)
        with pytest.raises(OSError, match="Input/output error"):
            print("x", file=terminal, flush=True)
        for step in (1, 2):
            clock.now += 1.0
            tracker.progress(step)
            tracker.log(step, {"loss": 1.0}, "train")
        tracker.flush()
        tracker.close()


@pytest.mark.parametrize("redirection", ["2>&-", "2>/dev/full", "2> >(exit)"])
def test_a_process_whose_standard_error_takes_nothing_ends_well(redirection):
    """Also at its very end, where Python empties what is left in its buffers."""
    code = """
import time
from everstep.tracking.console import ConsoleTracker
tracker = ConsoleTracker(10)
tracker.start(0)
for step in range(20):
    time.sleep(0.01)
    tracker.log(step, {"loss": 1.0}, "train")
tracker.flush()
tracker.close()
print("done")
"""
    command = ["bash", "-c", f'"$0" -c "$1" {redirection}', sys.executable, code]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "done\n")


@contextlib.contextmanager
def broken(what):
    """Opens a stream that takes nothing."""
    if what == "a closed file":
        yield closed_file()
        return
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(OSError), open(writer if "pipe" in what else "/dev/full", "w") as stream:
        yield stream
    if "pipe" not in what:
        os.close(writer)


def closed_file():
    stream = io.StringIO()
    stream.close()
    return stream
