"""What a run that is killed again and again keeps, and how it counts that."""

import datetime
import os
from pathlib import Path

import pytest
from benchmarks.reliability import goodput_under_kills

from everstep.run.goodput import goodput
from everstep.run.record import Run, read

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")


@pytest.mark.full
@pytest.mark.backend
def test_a_supervised_run_keeps_what_it_computes(tmp_path: Path) -> None:
    figures = goodput_under_kills.measure(tmp_path, BACKEND, period=8.0, kills=1, checkpoint_seconds=0.1)
    assert figures.passed(), figures.line()
    assert figures.kills == 1


def test_an_attempt_that_died_before_its_first_step_has_computed_none(tmp_path: Path) -> None:
    now = datetime.datetime(2024, 5, 1, tzinfo=datetime.UTC)

    def later() -> datetime.datetime:
        nonlocal now
        now += datetime.timedelta(seconds=10)
        return now

    Run.open(tmp_path, "line", "jax", later).begin(0, "")
    beat = 50, now.timestamp() + 5
    for _ in range(2):  # both start from step 40; the first of them is killed while it compiles
        Run.open(tmp_path, "line", "jax", later).begin(40, "", beat=beat)
    attempts = read(tmp_path)["attempts"]
    assert [(one["from_step"], one["to_step"]) for one in attempts] == [(0, 50), (40, 40), (40, 40)]
    assert goodput(read(tmp_path)).steps_computed == 50
