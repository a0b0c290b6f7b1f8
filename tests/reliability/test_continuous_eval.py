"""Two jobs, as Model Garden's users start them: one trains, the other evaluates every checkpoint that it writes."""

import os
import re
import signal
from pathlib import Path

import pytest

from everstep.testing.reliability.process import Job, Process

pytestmark = pytest.mark.slow

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
WORDS = ("trainer.train_steps=60", "trainer.checkpoint_interval=20", "trainer.continuous_eval_timeout=200")


def evaluator(training: Job) -> tuple[Process, Path]:
    """Starts the evaluation job of a run; returns its process, and its log file."""
    log = training.directory.with_name("evaluator.log")
    return Process([*training.command(), "--mode", "continuous_eval"], log), log


def evaluated(log: Path) -> list[int]:
    return [int(step) for step in re.findall(r"eval[a-z]*\s+\| step: *(\d+)", log.read_text())]


@pytest.mark.full
@pytest.mark.parametrize("first", ["evaluator", pytest.param("trainer", marks=pytest.mark.full)])
def test_it_evaluates_whichever_starts_first_and_over_a_kill(first: str, tmp_path: Path) -> None:
    training = Job("reliability/cnn", BACKEND, tmp_path / "run", ("--no-export", *WORDS))
    if first == "trainer":
        trainer = training.start()
        assert trainer.until(lambda: (training.newest_checkpoint() or 0) >= 20), trainer.said()
    follower, log = evaluator(training)
    try:
        if first == "evaluator":
            assert follower.until(lambda: "waiting up to 200 s for the first checkpoint" in log.read_text())
            assert not training.directory.exists()
            trainer = training.start()
            assert trainer.until(lambda: (training.newest_checkpoint() or 0) >= 20), trainer.said()
        trainer.kill()
        training.finish()
        assert follower.wait() == 0, follower.said()
    finally:
        follower.send(signal.SIGKILL)
    assert evaluated(log)[-1] == 60
    assert [attempt["reason"] for attempt in training.record()["attempts"]] in (["killed", "done"], ["done", "done"])
