"""Two processes on a real Slurm of one node: requeued, and one killed; the bits are those of an undisturbed gang."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
from submit_place import Place, until
from tests.several.launched import HERE, WORDS, at_step, ended, launch, pids, record

pytestmark = [
    pytest.mark.full,
    pytest.mark.daily("jax"),
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not()),
]

STEPS = "trainer.train_steps=1200"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    monkeypatch.setenv("PYTHONPATH", path)
    with slurm_cluster.cluster(tmp_path / "slurm", cpus=2, memory=4000) as conf:
        monkeypatch.setenv("SLURM_CONF", str(conf))
        (tmp_path / "here").mkdir()
        yield Place(tmp_path / "here", monkeypatch)


def submit(place: Place, *options: str, code: int = 0) -> str:
    """Submits the experiment for two processes; returns the number of its job."""
    words = ["submit", "--on=slurm", "--processes=2", "--gpu-type=none", "--mem=1000", f"--model-dir={place.run}"]
    command = [sys.executable, "-m", "everstep", "train", *WORDS, f"--model-dir={place.run}", STEPS]
    return place.everstep(*words, *options, "--", *command, code=code)


def begin_now(number: str) -> bool:
    """Lets a requeued job begin now; by itself it begins after two minutes."""
    subprocess.run(["scontrol", "update", f"JobId={number}", "StartTime=now"], check=False, capture_output=True)
    return True


def test_two_tasks_are_requeued_and_one_is_killed(place: Place, tmp_path: Path) -> None:
    undisturbed = launch(tmp_path / "undisturbed", 2, STEPS)
    number = submit(place).split()[1]
    until(at_step(place.run, 100, 0.0))
    subprocess.run(["scancel", "--signal=USR1", "--batch", number], check=True)  # as Slurm two minutes before the end
    until(
        lambda: record(place.run)["status"] == "interrupted" and place.listed()["state"] == f"queued (slurm {number})"
    )
    stopped = record(place.run)["step"]
    assert until(lambda: begin_now(number) and len(record(place.run)["attempts"]) == 2)
    until(lambda: record(place.run)["step"] > stopped + 100)
    killed = pids(place.run)[1]
    os.kill(killed, signal.SIGKILL)
    until(lambda: place.listed()["submission"]["state"] == "ended")

    log = place.log("err")
    assert f"the time is up: job {number} is requeued" in log
    assert "rank 1 (on localhost) was ended by SIGKILL" in log
    code, text = ended(undisturbed)
    assert code == 0, text
    attempts = record(place.run)["attempts"]
    assert [attempt["processes"] for attempt in attempts] == [2, 2, 2], log
    assert attempts[1]["from_step"] == stopped
    assert record(place.run)["status"] == "finished"
    assert record(place.run)["digest"] == record(tmp_path / "undisturbed")["digest"]
    assert place.listed()["submission"]["code"] == 0
