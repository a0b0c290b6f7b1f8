"""`everstep runs watch`."""

import os
import re
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.terminal import Terminal

from everstep.cli import runs_watch
from everstep.run.lock import RunLock
from everstep.run.record import Run

pytestmark = pytest.mark.slow

HISTORY = "step,training_loss,accuracy,steps_per_second,validation_loss,validation_accuracy\n"


@pytest.fixture
def between_reads(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], Any]]:
    """A list of calls; in place of each pause between two reads of the runs, the next one is made."""
    calls: list[Callable[[], Any]] = []
    clock = types.SimpleNamespace(sleep=lambda seconds: calls.pop(0)(), monotonic=time.monotonic, time=time.time)
    monkeypatch.setattr(runs_watch, "time", clock)
    return calls


def begun(directory: str | Path, steps: int = 100, total: int = 400) -> Run:
    run = Run.open(directory, "mnist/mlp", "jax")
    run.record["train_steps"] = total
    run.begin(0, "", code={})
    run.mark_first_step()
    run.update(steps, 0, {"train": {"training_loss": 0.5}, "validation": {}})
    return run


def ended(directory: str | Path, status: Any = "finished") -> Run:
    run = begun(directory, 400)
    run.finish(status, "done")
    return run


def test_a_run_that_has_ended(everstep: Any) -> None:
    ended("runs/a")
    Path("runs/a/history.csv").write_text(f"{HISTORY}200,0.5,0.8,90.0,0.6,0.7\n400,nan,0.9,90.0,0.4,0.8\n")
    shown = everstep("runs", "watch", "runs/a")
    assert shown.code == 0
    assert shown.out == (
        "runs/a · finished · 400/400 · 100 % · train loss nan · train accuracy 0.9 · validation loss 0.4 · "
        "validation accuracy 0.8\n"
    )


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1), ("interrupted", 1)])
def test_the_exit_code(everstep: Any, status: str, code: int) -> None:
    ended("runs/a", status)
    assert everstep("runs", "watch", "runs/a").code == code
    assert everstep("runs", "watch", "runs/a", "--once").code == code


def test_the_exit_code_of_a_killed_run(everstep: Any) -> None:
    begun("runs/a")
    shown = everstep("runs", "watch", "runs/a")
    assert shown.code == 1
    assert "runs/a · killed · 100/400 · 25 %" in shown.out


@pytest.mark.parametrize("place", ["nowhere", "empty", "file"])
def test_a_place_without_runs(everstep: Any, place: str) -> None:
    Path("empty").mkdir()
    Path("file").write_text("")
    shown = everstep("runs", "watch", place)
    assert shown.code == 2
    assert re.fullmatch(rf"everstep: error: RUN\|ROOT: received '{place}', .*\n", shown.err)
    assert everstep("runs", "watch").code == 2, "the directory runs does not exist either"


@pytest.fixture
def working(tmp_path: Path) -> Iterator[tuple[Run, RunLock]]:
    """A run at work, and its lock."""
    run = begun(tmp_path / "runs" / "a")
    with RunLock(run.directory) as lock:
        yield run, lock


def test_a_line_for_everything_new(everstep: Any, working: Any, between_reads: list[Callable[[], Any]]) -> None:
    run, lock = working
    history = run.directory / "history.csv"
    history.write_text(f"{HISTORY}100,0.5,0.8,90.0,,\n")

    def log() -> None:
        with history.open("a") as file:
            file.write("200,0.25,0.9,90.0,0.3,0.85\n")

    def finish() -> None:
        run.update(400, 1)
        run.finish("finished", "done")
        lock.__exit__(None, None, None)

    between_reads += [lambda: lock.beat(150), log, finish]  # a new step alone prints no line
    shown = everstep("runs", "watch", "runs/a")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert [line.split(" · ")[1] for line in lines] == ["running", "running", "finished"]
    assert "train loss 0.5 · train accuracy 0.8" in lines[0]
    assert "train loss 0.25 · train accuracy 0.9 · validation loss 0.3 · validation accuracy 0.85" in lines[1]


def test_a_restarted_run_is_followed(
    everstep: Any, working: Any, between_reads: list[Callable[[], Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs_watch, "_GRACE", 300.0)
    run, lock = working
    again = RunLock(run.directory)

    def finish() -> None:
        run.finish("finished", "done")
        again.__exit__(None, None, None)

    between_reads += [lambda: lock.__exit__(None, None, None), again.__enter__, finish]  # killed, restarted, done
    shown = everstep("runs", "watch", "runs/a")
    assert shown.code == 0
    states = [line.split(" · ")[1] for line in shown.out.splitlines()]
    assert states == ["running", "killed", "running", "finished"]


def test_all_runs_below_a_directory(everstep: Any) -> None:
    for name, status in (("a", "finished"), ("b/c", "failed")):
        ended(Path("runs", name), status)
    shown = everstep("runs", "watch", "--once")
    assert shown.code == 1
    states = [line.split(" · ")[:2] for line in shown.out.splitlines()]
    assert states == [["runs/a", "finished"], ["runs/b/c", "failed"]]


def test_ctrl_c(everstep: Any, working: Any, between_reads: list[Callable[[], Any]]) -> None:
    def press() -> None:
        raise KeyboardInterrupt

    between_reads.append(press)
    shown = everstep("runs", "watch", "runs/a")
    assert (shown.code, shown.err) == (130, "")


def test_a_damaged_record_is_shown_as_such(everstep: Any) -> None:
    ended("runs/a")
    Path("runs/b").mkdir()
    Path("runs/b/run.json").write_text('{"id": "x", "attempts": 3}')
    shown = everstep("runs", "watch", "runs", "--once")
    assert "runs/b · unreadable" in shown.out
    shown = everstep("runs", "watch", "runs/b")
    assert (shown.code, shown.err) == (1, "")


def test_on_a_terminal_it_is_drawn_in_place(tmp_path: Path) -> None:
    run = begun(tmp_path / "runs" / "a", 100)
    (run.directory / "history.csv").write_text(f"{HISTORY}100,0.5,0.8,90.0,0.6,0.7\n200,0.4,0.8,90.0,0.5,0.7\n")
    words = [sys.executable, "-m", "everstep", "runs", "watch", "runs/a"]
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")} | {"TERM": "xterm"}
    with RunLock(run.directory) as lock, Terminal(words, environment, 100, 24, tmp_path) as terminal:
        terminal.wait_for("100/400")
        lock.beat(200)
        terminal.wait_for("200/400")
        assert "100/400" not in terminal.screen.text()
        assert "validation 0.5   best 0.5 at 200   █▁" in terminal.screen.text()
        assert "runs/a  mnist/mlp · jax" in terminal.screen.text()
        terminal.interrupt()
        assert terminal.end() == 130
        assert "Traceback" not in terminal.screen.text()
        assert "\x1b[?" not in terminal.raw
