"""Signals in the middle of a run: the step reached is the step saved."""

import os
import signal
from pathlib import Path

import pytest

from everstep.testing.reliability import signals_answered
from everstep.testing.reliability.process import Job

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
# What answers signals is the same on all backends, and the others take longer to start.
pytestmark = [pytest.mark.backend, pytest.mark.daily("torch")]
WORDS = ("runtime.stop_signals=[USR1]", f"runtime.requeue_exit_code={signals_answered.REQUEUE}")


def test_signals_while_evaluating_and_training(tmp_path: Path) -> None:
    job = Job("reliability/phases", BACKEND, tmp_path / "run", ("task.seconds_per_validation_batch=0.2", *WORDS))
    evaluating = signals_answered.send(job, "SIGTERM", signals_answered.marked(job, "evaluating"))
    assert (evaluating.wrong, evaluating.step) == ("", 30)
    signals = (signal.SIGUSR1, signal.SIGTERM)
    training = signals_answered.send(job, "USR1", signals_answered.training(job), signals, signals_answered.REQUEUE)
    assert training.wrong == ""
    assert training.step > 30
    assert [attempt["reason"] for attempt in job.record()["attempts"]] == ["SIGTERM", "SIGUSR1"]


@pytest.mark.full
def test_signals_in_every_phase(tmp_path: Path) -> None:
    answers = signals_answered.in_phases(tmp_path, BACKEND)
    assert [answer.line() for answer in answers if answer.wrong] == []


@pytest.mark.full
def test_signals_at_random_instants(tmp_path: Path) -> None:
    answers = signals_answered.at_random(tmp_path, BACKEND, 3)
    assert [answer.line() for answer in answers if answer.wrong] == []
