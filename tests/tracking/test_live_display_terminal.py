"""The display on a real terminal: a program in a pseudo-terminal, and what its screen shows."""

import io
import os
import re
import signal
import sys
import time

import pytest
from tests.servers.terminal import Terminal

from everstep.tracking.console import ConsoleTracker, Facts
from everstep.tracking.live_screen import LiveScreen, pause_after

pytestmark = pytest.mark.slow

PROGRAM = """
import contextlib, logging, os, sys, time
from everstep.tracking.console import ConsoleTracker
tracker = ConsoleTracker(1000)
steps, pause = int(sys.argv[1]), float(sys.argv[2])
try:
    with contextlib.closing(tracker):
        tracker.start(0)
        for step in range(1, steps + 1):
            tracker.progress(step)
            time.sleep(pause)
            if step % 20 == 0:
                tracker.log(step, {"training_loss": 1 / step, "steps_per_second": 50.0}, "train")
            if step == 50:
                print("printed by a step")
                logging.getLogger("a").warning("a warning")
                os.write(2, b"written past everybody\\r\\n")
                if os.fork() == 0:
                    print("printed by a forked worker")
                    sys.stdout.flush()
                    os._exit(0)
                os.wait()
    print("all is done")
except KeyboardInterrupt:
    print("interrupted")
"""


def terminal(steps, pause=0.005, columns=100, rows=30, **environment):
    inherited = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    words = [sys.executable, "-c", PROGRAM, str(steps), str(pause)]
    return Terminal(words, {**inherited, "TERM": "xterm-256color", **environment}, columns, rows)


@pytest.fixture(scope="module")
def done():
    """The program on a terminal, after its end, and the seconds that it took."""
    begin = time.monotonic()
    with terminal(200) as shown:
        assert shown.end() == 0
        shown.seconds = time.monotonic() - begin
        return shown


def test_lines_are_scrollback_above_the_picture(done):
    text = done.screen.text()
    lines = [line for line in text.splitlines() if line.startswith("train | step:")]
    assert [int(line.split("|")[1].split(":")[1]) for line in lines] == [*range(20, 201, 20)]
    assert text.count("200/1,000") == 1, "one picture"
    assert text.count("steps/s ") == 1
    assert text.index("train | step:   200") < text.index("200/1,000") < text.index("all is done")
    assert text.splitlines()[-1] == "all is done"


@pytest.mark.parametrize("line", ["printed by a step", "a warning", "written past everybody", "printed by a forked"])
def test_output_of_others_is_kept(done, line):
    assert sum(line in one for one in done.screen.text().splitlines()) == 1


def test_it_is_drawn_at_most_ten_times_a_second(done):
    frames = done.raw.count("\x1b[J")
    assert 3 <= frames <= 10 * done.seconds + 2, "steps are reported 200 times a second"


def test_the_terminal_is_left_as_it_was(done):
    assert "\x1b[?" not in done.raw, "the cursor is not hidden, and the screen not switched"
    assert done.raw.rstrip().endswith("all is done")


def test_ctrl_c_leaves_the_last_picture_and_a_usable_terminal():
    with terminal(100_000) as shown:
        shown.wait_for("train | step:    40")
        shown.interrupt()
        assert shown.end() == 0
        lines = shown.screen.text().splitlines()
        assert lines[-1] == "interrupted"
        assert any("/1,000" in line for line in lines[-6:-1])
        assert "\x1b[?" not in shown.raw


def test_a_narrower_window_leaves_no_old_lines():
    with terminal(100_000, columns=100) as shown:
        shown.wait_for("train | step:    40")
        shown.resize(50, 12)
        shown.wait_for("train | step:   120")
        shown.process.send_signal(signal.SIGKILL)
        shown.end()
        text = shown.screen.text()
        assert text.count("steps/s ") == 1
        assert all(len(line) <= 50 for line in text.splitlines()[-5:])
        assert "\x1b[?" not in shown.raw, "killed, and the cursor is visible"


def test_no_color_is_honoured():
    with terminal(30, NO_COLOR="1") as shown:
        assert shown.end() == 0
        assert "30/1,000" in shown.screen.text()
        assert not re.search(r"\x1b\[[0-9;]*3[0-7]m", shown.raw)


def test_a_display_that_fails_does_not_stop_the_run(caplog):
    class Out:
        encoding = "utf-8"
        written = ""

        def write(self, text):
            self.written += text

        def flush(self):
            pass

    def broken(columns, rows):
        raise RuntimeError("cannot be drawn")

    screen = LiveScreen(Out(), broken)
    screen.start()
    screen.print("a line")
    screen.stop()
    assert "a line" in screen._out.written
    assert caplog.text.count("the display cannot be drawn") == 1


@pytest.mark.full
def test_the_cost_of_drawing(capsys, monkeypatch):
    """Prints the processor time of a picture and of a report of progress."""

    class Tty(io.StringIO):
        def isatty(self):
            return True

    tracker = ConsoleTracker(100_000, Tty())
    tracker.facts = lambda step: Facts(epoch=1.5, checkpoint=(1000, 3.0), goodput=1.0)
    monkeypatch.setenv("TERM", "xterm")
    tracker.start(0)
    for step in range(100, 2100, 100):
        tracker.log(step, {"training_loss": 1 / step, "accuracy": 0.9}, "train")
        tracker.log(step, {"validation_loss": 1 / step, "accuracy": 0.9}, "validation")
    begin, rounds = time.thread_time(), 500
    for step in range(rounds):
        tracker.progress(step)
        tracker._screen._draw()
    drawing = (time.thread_time() - begin) / rounds
    begin = time.thread_time()
    for step in range(100_000):
        tracker.progress(step)
    reporting = (time.thread_time() - begin) / 100_000
    begin = time.thread_time()
    for step in range(100_000):
        abs(step)
    call = (time.thread_time() - begin) / 100_000
    tracker.close()
    with capsys.disabled():
        print(f"\na picture takes {1e6 * drawing:.0f} µs: one every {pause_after(drawing):.2f} s")
        print(f"a report of progress takes {1e9 * reporting:.0f} ns")
    assert pause_after(drawing) < 1.0, "three thousandths of the time suffice for a picture each second"
    assert reporting < 30 * call
