"""Two processes on a real Slurm of one node: requeued, and one killed; the bits are those of an undisturbed gang.

Started by `srun` alone, they say in one line what is wrong with their input.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import slurm_cluster
from submit_place import Place, begin_now, until
from tests.several.launched import HERE, WORDS, at_step, ended, launch, pids, record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.daily("jax"),
    pytest.mark.timeout(1200),
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


def test_two_tasks_are_requeued_and_one_is_killed(place: Place, tmp_path: Path) -> None:
    code, text = ended(launch(tmp_path / "undisturbed", 2, STEPS))
    assert code == 0, text
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
    attempts = record(place.run)["attempts"]
    assert [attempt["processes"] for attempt in attempts] == [2, 2, 2], log
    assert attempts[1]["from_step"] == stopped
    assert record(place.run)["status"] == "finished"
    assert record(place.run)["digest"] == record(tmp_path / "undisturbed")["digest"]
    assert place.listed()["submission"]["code"] == 0


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["task.unit=3"], "task.unit: received 3, unknown key"),
        (["runtime.mesh={model: 2}"], "runtime.mesh: received {'model': 2}, has no axis 'data'"),
    ],
    ids=["before they meet", "afterwards"],
)
def test_bad_input_of_two_tasks(place: Place, words: list[str], expected: str) -> None:
    done = srun(place, *words)
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    (line,) = [line for line in done.stderr.splitlines() if not line.startswith("srun: ")]
    assert line.startswith("everstep: error: ")
    assert expected in line
    assert not (place.run / "run.json").exists()


def srun(place: Place, *words: str) -> subprocess.CompletedProcess[str]:
    """Trains with two tasks of one step, as a user does without our launcher."""
    train = [sys.executable, "-m", "everstep", "train", *WORDS, f"--model-dir={place.run}", *words]
    command = ["srun", "--ntasks=2", "--mem=1000", *train]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
