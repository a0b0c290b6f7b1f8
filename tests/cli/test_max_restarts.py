"""`everstep train --max-restarts`, as a user types it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.reliability.process import Job

HERE = Path(__file__).parent
WORDS = ("--import=slow_experiment", "--mode=train", "--no-export", "--max-restarts", "2")


def test_a_killed_run_goes_on_and_finishes(tmp_path: Path) -> None:
    shutil.copy(HERE.parent / "slow_experiment.py", tmp_path)
    job = Job("slow/line", "jax", tmp_path / "run", WORDS)
    process = job.start()
    try:
        assert process.until(lambda: (job.newest_checkpoint() or 0) > 0), process.said()
        trainer = job.holder()
        assert trainer not in (None, process.pid), "the supervisor trains itself"
        os.kill(trainer or 0, signal.SIGKILL)
        (tmp_path / "hurry").touch()
        assert process.wait(120) == 0, process.said()
    finally:
        process.kill()
    record = job.record()
    assert (record["status"], record["step"]) == ("finished", 200)
    assert [attempt["reason"] for attempt in record["attempts"]] == ["SIGKILL", "done"]
    saved = record["attempts"][1]["from_step"]
    assert saved > 0
    assert f"newest checkpoint: step {saved}; restart 1 of 2 in 1 s" in job.directory.with_suffix(".log").read_text()


@pytest.mark.parametrize("words", [["--max_restarts", "2", "--mode=trian"], ["--max-restarts=2", "--mode=trian", "--"]])
def test_what_is_started_is_the_command_given_and_not_that_of_the_process(tmp_path: Path, words: list[str]) -> None:
    script = f"import sys; from everstep.cli.main import main; sys.exit(main(['train', 'mnist/local', *{words!r}]))"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2, "bad input is not tried again"
    assert done.stderr.startswith("everstep: error: mode: received 'trian', unknown mode"), done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_negative_number_is_refused(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "everstep", "train", "mnist/local", "--max-restarts=-1"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr == "everstep: error: --max-restarts: received -1, must be 0 or more\n"
