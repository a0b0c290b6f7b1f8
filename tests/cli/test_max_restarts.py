"""`everstep train --max-restarts`."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from everstep.cli.main import main
from everstep.testing.reliability.process import Job

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
WORDS = ("--import=slow_experiment", "--mode=train", "--no-export", "--max-restarts", "2")


def test_a_killed_run_is_restarted_and_finishes(tmp_path: Path) -> None:
    shutil.copy(HERE.parent / "slow_experiment.py", tmp_path)
    job = Job("slow/line", "jax", tmp_path / "run", WORDS)
    process = job.start()
    try:
        assert process.until(lambda: (job.newest_checkpoint() or 0) > 0), process.said()
        trainer = job.holder()
        assert trainer not in (None, process.pid), "the supervisor trains itself"
        os.kill(trainer or 0, signal.SIGKILL)
        (tmp_path / "hurry").touch()
        assert process.wait(300) == 0, process.said()
    finally:
        process.kill()
    record = job.record()
    assert (record["status"], record["step"]) == ("finished", 200)
    assert [attempt["reason"] for attempt in record["attempts"]] == ["SIGKILL", "done"]
    saved = record["attempts"][1]["from_step"]
    assert saved > 0
    assert f"newest checkpoint: step {saved}; restart 1 of 2 in 1 s" in job.directory.with_suffix(".log").read_text()


@pytest.mark.parametrize("words", [["--max_restarts", "2", "--mode=trian"], ["--max-restarts=2", "--mode=trian", "--"]])
def test_the_given_command_is_started_not_that_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "mnist/local", *words]) == 2, "bad input is not restarted"
    printed = capfd.readouterr().err
    assert printed.startswith("everstep: error: mode: received 'trian', unknown mode"), printed
    assert printed.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_negative_number_is_refused(everstep: Any) -> None:
    outcome = everstep("train", "mnist/local", "--max-restarts=-1")
    assert outcome.code == 2
    assert outcome.err == "everstep: error: --max-restarts: received -1, must be 0 or more\n"
