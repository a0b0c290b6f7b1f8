"""A whole run on a machine that the cloud takes back."""

import os
import shutil
from pathlib import Path

import pytest
import test_preemption

from everstep.testing.reliability.process import Job

pytestmark = pytest.mark.slow

BACKEND = os.environ.get("KERAS_BACKEND", "tensorflow")
TRAIN = ("--import=slow_experiment", "--mode=train", "--no-export", "trainer.checkpoint_interval=0")
NOTICE = ("runtime.preemption_notice=gce", "runtime.requeue_exit_code=85")

cloud = test_preemption.cloud  # the fixture


@pytest.mark.full
def test_a_notice_saves_the_step_and_the_same_command_resumes(cloud, tmp_path: Path) -> None:
    shutil.copy(Path(__file__).parents[1] / "slow_experiment.py", tmp_path)
    job = Job("slow/line", BACKEND, tmp_path / "run", (*TRAIN, *NOTICE))
    process = job.start()
    try:
        assert process.until(lambda: (job.heartbeat() or 0) > 0), process.said()
        assert job.newest_checkpoint() is None, "only the notice is to save"
        cloud.preempted = "TRUE"
        assert process.wait() == 85, process.said()
    finally:
        process.kill()
    reached = job.heartbeat()
    assert reached is not None
    assert 0 < reached < 200
    assert job.newest_checkpoint() == job.record()["step"] == reached
    assert job.record()["status"] == "interrupted"
    assert "everstep: preemption notice: GCE takes this machine back: the state is saved" in process.said()

    cloud.preempted = "FALSE"
    (tmp_path / "hurry").touch()
    job.finish()
    record = job.record()
    assert (record["status"], record["step"]) == ("finished", 200)
    assert [attempt["from_step"] for attempt in record["attempts"]] == [0, reached]
    reasons = ["preemption notice: GCE takes this machine back", "done"]
    assert [attempt["reason"] for attempt in record["attempts"]] == reasons
