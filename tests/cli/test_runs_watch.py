"""`everstep runs watch`."""

import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.terminal import Terminal

from everstep.cli import runs_watch
from everstep.run.lock import RunLock
from everstep.run.record import Run

HISTORY = "step,training_loss,accuracy,steps_per_second,validation_loss,validation_accuracy\n"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs_watch, "_PAUSE", 0.02)
    monkeypatch.setattr(runs_watch, "_PAUSE_OF_MANY", 0.02)
    monkeypatch.setattr(runs_watch, "_GRACE", 0.3)


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
def test_the_exit_code_tells_how_it_ended(everstep: Any, status: str, code: int) -> None:
    ended("runs/a", status)
    assert everstep("runs", "watch", "runs/a").code == code
    assert everstep("runs", "watch", "runs/a", "--once").code == code


def test_killed_is_no_good_end(everstep: Any) -> None:
    begun("runs/a")
    shown = everstep("runs", "watch", "runs/a")
    assert shown.code == 1
    assert "runs/a · killed · 100/400 · 25 %" in shown.out


@pytest.mark.parametrize("place", ["nowhere", "empty", "file"])
def test_no_run_is_said(everstep: Any, place: str) -> None:
    Path("empty").mkdir()
    Path("file").write_text("")
    shown = everstep("runs", "watch", place)
    assert shown.code == 2
    assert re.fullmatch(rf"everstep: error: RUN\|ROOT: received '{place}', .*\n", shown.err)
    assert everstep("runs", "watch").code == 2, "nor is there the directory runs"


@pytest.fixture
def working(tmp_path: Path) -> Iterator[tuple[Run, RunLock, list[threading.Thread]]]:
    """A run at work, and a list for threads that do it."""
    run, threads = begun(tmp_path / "runs" / "a"), list[threading.Thread]()
    with RunLock(run.directory) as lock:
        yield run, lock, threads
        for thread in threads:
            thread.join()


def test_a_line_for_everything_new(everstep: Any, working: Any) -> None:
    run, lock, threads = working
    history = run.directory / "history.csv"
    history.write_text(f"{HISTORY}100,0.5,0.8,90.0,,\n")

    def work() -> None:
        time.sleep(0.3)
        lock.beat(150)  # a step is no news
        time.sleep(0.2)
        with history.open("a") as file:
            file.write("200,0.25,0.9,90.0,0.3,0.85\n")
        time.sleep(0.2)
        run.update(400, 1)
        run.finish("finished", "done")
        lock.__exit__(None, None, None)

    threads.append(threading.Thread(target=work))
    threads[0].start()
    shown = everstep("runs", "watch", "runs/a")
    assert shown.code == 0
    lines = shown.out.splitlines()
    assert [line.split(" · ")[1] for line in lines] == ["running", "running", "finished"]
    assert "train loss 0.5 · train accuracy 0.8" in lines[0]
    assert "train loss 0.25 · train accuracy 0.9 · validation loss 0.3 · validation accuracy 0.85" in lines[1]


def test_a_run_that_is_started_again_is_followed(everstep: Any, tmp_path: Path) -> None:
    run, lock = begun(tmp_path / "runs" / "a"), RunLock(tmp_path / "runs" / "a")
    lock.__enter__()

    def work() -> None:
        time.sleep(0.15)
        lock.__exit__(None, None, None)  # killed, and a supervisor sees it
        time.sleep(0.15)
        with RunLock(run.directory):
            time.sleep(0.15)
            run.finish("finished", "done")

    thread = threading.Thread(target=work)
    thread.start()
    shown = everstep("runs", "watch", "runs/a")
    thread.join()
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


def test_ctrl_c_is_a_way_to_end(everstep: Any, working: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def pressed(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs_watch.time, "sleep", pressed)
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
