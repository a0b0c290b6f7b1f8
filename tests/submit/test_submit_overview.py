"""The state of a submitted run while its job is alive and no process holds the run's directory."""

import json
import os
from pathlib import Path

import pytest

from everstep.run.listing import Overview
from everstep.run.record import Run, read
from everstep.submit.submissions import Submission

JOB = {"executor": "background", "job": 4711}
EARLIER, LATER = "2020-01-01T00:00:00+00:00", "2099-01-01T00:00:00+00:00"


def state(directory: Path, submitted: str) -> str:
    job = Submission(directory / "submissions" / "1", JOB, "active", None, (submitted,))
    return Overview(directory, read(directory), job).state


def ended(directory: Path, status: str) -> Path:
    run = Run.open(directory, "line", "jax")
    run.begin(0, "")
    run.finish(status, "done")
    return directory


def test_the_job_that_finished_the_run(tmp_path):
    assert state(ended(tmp_path, "finished"), EARLIER) == "finished"


def test_a_job_submitted_after_the_end(tmp_path):
    assert state(ended(tmp_path, "finished"), LATER) == "restarting (background 4711)"


@pytest.mark.parametrize("status", ["failed", "interrupted", "running"])
def test_between_two_attempts(tmp_path, status):
    assert state(ended(tmp_path, status), EARLIER) == "restarting (background 4711)"


def test_a_projects_run_is_finished_when_it_is_evaluated(tmp_path):
    ended(tmp_path, "finished")
    (tmp_path / "training").mkdir()
    assert state(tmp_path, EARLIER) == "restarting (background 4711)"
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "metrics.json").write_text(json.dumps({}))
    assert state(tmp_path, EARLIER) == "finished"


def test_a_run_that_was_only_evaluated_again_is_finished(tmp_path):
    ended(tmp_path, "finished")
    (tmp_path / "training").mkdir()
    (tmp_path / "reports").mkdir()
    (tmp_path / "reports" / "metrics.json").write_text(json.dumps({}))
    os.utime(tmp_path / "reports" / "metrics.json", (5e9, 5e9))
    assert state(tmp_path, LATER) == "finished"
