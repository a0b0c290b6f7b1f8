"""A run killed in the middle: the same state and the same curves as one that was left alone."""

import json
import os
from pathlib import Path

import pytest

from everstep.testing.reliability import continuity, killed_runs
from everstep.testing.reliability.process import Job

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
SHORT = ("trainer.train_steps=60", "--no-export")

pytestmark = [pytest.mark.slow, pytest.mark.gpu]


@pytest.mark.backend
@pytest.mark.daily("jax")  # on the others: tests/frontends/test_entry_points.py
def test_a_killed_run_ends_in_the_same_bits_and_curves(tmp_path: Path) -> None:
    whole = Job("reliability/cnn", BACKEND, tmp_path / "whole", SHORT)
    killed = Job("reliability/cnn", BACKEND, tmp_path / "killed", SHORT)
    whole.finish()
    continuity.kill_at(killed, [20])
    killed.finish()
    assert list(killed_runs.differences(killed, whole.record())) == []
    assert [attempt["reason"] for attempt in killed.record()["attempts"]] == ["killed", "done"]
    for read in (continuity.history, continuity.tensorboard):
        points = read(killed)
        assert list(continuity.differences(points, read(whole))) == []
        assert {step for name, step, _ in points if "training_loss" in name} >= {7, 14, 21, 28, 30, 37, 60}


@pytest.mark.full
@pytest.mark.backend
def test_killed_in_its_second_stage_it_ends_in_the_same_bits_and_has_the_same_best(tmp_path: Path) -> None:
    """The stage, the averages, the gradients collected so far, and the best accuracy yet: nothing begins anew."""
    whole = Job("reliability/growing", BACKEND, tmp_path / "whole", ("--no-export",))
    killed = Job("reliability/growing", BACKEND, tmp_path / "killed", ("--no-export",))
    whole.finish()
    continuity.kill_at(killed, [140])
    assert 100 < killed.newest_checkpoint() < 300
    killed.finish()
    assert list(killed_runs.differences(killed, whole.record())) == []
    best = [json.loads((job.directory / "best" / "info.json").read_text()) for job in (whole, killed)]
    assert best[0] == best[1]
    assert list(continuity.differences(continuity.history(killed), continuity.history(whole))) == []


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.parametrize("model", killed_runs.MODELS)
def test_kills_at_random_instants(model: str, tmp_path: Path) -> None:
    figures = killed_runs.measure(tmp_path, model, BACKEND, 2, 0, "trainer.train_steps=200")
    assert figures.passed(), figures.wrong
    assert figures.kills == 2
