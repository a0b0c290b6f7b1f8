import contextlib
import io
import os
import re
import subprocess
import sys

import pytest

from everstep.tracking.console import ConsoleTracker, Facts, NoOutput

pytestmark = pytest.mark.slow


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


def test_the_rate_of_slow_steps():
    out = io.StringIO()
    ConsoleTracker(9, out).log(1, {"steps_per_second": 0.0123, "loss": 1.0}, "train")
    assert out.getvalue() == "train | step:     1 | steps/sec:  0.012 | loss: 1\n"


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
    tracker.facts = lambda step: Facts(epoch=step / 400, checkpoint=(200, 12.0), attempts=2, goodput=0.973)
    tracker.start(200)
    for step in (300, 400, 500):
        clock.now += 1.0
        tracker.progress(step)
        tracker.status()  # as the drawing thread does
    tracker.log(500, {"loss": 0.5, "samples_per_second": 3200.0, "data_wait": 0.02}, "train")
    tracker.close()
    shown = visible(terminal)
    assert "500/1,000  epoch 1.25" in shown
    assert "100 steps/s · 5 s left · 3,200 samples/s · data wait 2 %" in shown
    assert "checkpoint 200, 12 s ago · attempt 2 · goodput 97.3 %" in shown
    assert "train | step:   500 | loss: 0.5" in shown.splitlines()


@pytest.mark.parametrize("kind", ["xterm", "dumb"])  # with the live picture, and without
def test_a_narrow_terminal_breaks_lines_between_numbers(terminal, monkeypatch, kind):
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", kind)
    tracker = ConsoleTracker(1000, terminal)
    tracker.start(0)
    logs = {"steps_per_second": 812.34, "training_loss": 0.314159, "accuracy": 0.91234, "learning_rate": 0.00096194}
    tracker.log(500, logs, "train")
    tracker.close()
    lines = [line.rstrip() for line in visible(terminal).splitlines()]
    begin = lines.index("train | step:   500 | steps/sec:  812.3")
    assert lines[begin + 1 : begin + 3] == [
        "      | training_loss: 0.31416 | accuracy: 0.91234",
        "      | learning_rate: 0.00096194",
    ]


def test_a_rollback_drops_what_is_run_again(terminal, clock):
    tracker = ConsoleTracker(1000, terminal, clock)
    tracker.start(0)
    for step, value in ((100, 0.5), (200, 0.1)):
        tracker.log(step, {"validation_loss": value}, "validation")
    tracker.start(100)
    (metric,) = tracker.status().metrics.all()
    assert (metric.last("validation"), metric.best) == (0.5, (100, 0.5))
    tracker.close()


def test_a_resumed_run_knows_the_best_of_earlier_attempts(terminal, clock, tmp_path):
    rows = "step,training_loss,validation_loss\n100,0.9,0.8\n200,0.5,0.3\n300,0.1,0.1\n400,0.0"
    (tmp_path / "history.csv").write_text(rows)
    tracker = ConsoleTracker(1000, terminal, clock, history=tmp_path / "history.csv")
    tracker.start(200)  # what lies beyond it is done again
    (metric,) = tracker.status().metrics.all()
    assert metric.best == (200, 0.3)
    tracker.close()


def test_figures_of_the_machine_are_not_printed(terminal, clock):
    out = io.StringIO()
    for stream in (out, terminal):
        tracker = ConsoleTracker(10, stream, clock)
        tracker.start(0)
        tracker.log(1, {"system/cpu_utilization_percentage": 73.2}, "system")
        tracker.close()
    assert out.getvalue() == ""
    assert "cpu 73 %" in visible(terminal)


def test_closing_twice_or_before_the_start_is_fine(terminal, clock):
    tracker = ConsoleTracker(10, terminal, clock)
    tracker.close()
    tracker.start(0)
    tracker.close()
    tracker.close()
    tracker.log(10, {"loss": 1.0}, "train")
    assert terminal.getvalue().endswith("train | step:    10 | loss: 1\n")  # below the picture


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}, {"TERM": ""}])
def test_a_terminal_that_cannot_be_drawn_on_gets_plain_lines(terminal, clock, monkeypatch, environment):
    monkeypatch.setenv("TERM", environment["TERM"])
    tracker = ConsoleTracker(10, terminal, clock)
    tracker.start(0)
    tracker.progress(1)
    tracker.log(1, {"loss": 1.0}, "train")
    tracker.close()
    assert terminal.getvalue() == "train | step:     1 | loss: 1\n"


def test_figures_of_speed_stay_out_of_the_lines():
    out = io.StringIO()
    logs = {"loss": 1.0, "steps_per_second": 10.0, "samples_per_second": 320.0, "data_wait": 0.5, "mfu": 0.4123}
    ConsoleTracker(10, out).log(1, logs, "train")
    assert out.getvalue() == "train | step:     1 | steps/sec:   10.0 | mfu: 41.2% | loss: 1\n"


@pytest.mark.parametrize("out", ["a pipe without a reader", "a full disk", "a closed file"])
def test_a_broken_stream_does_not_stop_training(out):
    with broken(out) as stream:
        tracker = ConsoleTracker(10, stream)
        tracker.start(0)
        tracker.progress(1)
        tracker.log(1, {"loss": 1.0}, "train")
        tracker.flush()
        tracker.close()
        tracker.log(2, {"loss": 1.0}, "train")


def test_a_closed_terminal_does_not_stop_training(clock):
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
def test_a_process_with_a_broken_standard_error_succeeds(redirection):
    """Also at its end, when Python flushes its buffers."""
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


def test_a_run_that_prints_nothing_keeps_nothing():
    """A StringIO in place of it held every line of a run until its end."""
    out = NoOutput()
    tracker = ConsoleTracker(1000, out)
    tracker.start(0)
    tracker.log(1, {"loss": 0.5}, "train")
    tracker.flush()
    tracker.close()
    print("dropped", file=out)
    assert not vars(out)
    assert not out.isatty()
