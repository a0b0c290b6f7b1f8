"""Sweeps on a real Slurm and a real Ray, of one node each."""

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.submit import slurm_cluster
from tests.submit.submit_place import Place, begin_now, until

pytestmark = [pytest.mark.slow, pytest.mark.full, pytest.mark.timeout(1800)]

UNITS = [4, 8, 16, 32]
SWEEP = ("sweep", "regression/sine", "task.model.units=4,8,16,32", "trainer.train_steps=200", "--sweep-dir", "swept")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    return Place(tmp_path, monkeypatch)


def trials() -> list[dict]:
    path = Path("swept", "trials.json")
    return json.loads(path.read_text())["trials"] if path.is_file() else []


def require_all_complete() -> None:
    """Every point of the grid once, with a run that is finished."""
    until(lambda: [row["state"] for row in trials()] == ["complete"] * len(UNITS))
    assert [row["values"]["task.model.units"] for row in trials()] == UNITS
    records = [json.loads(Path("swept", row["directory"], "run.json").read_text()) for row in trials()]
    assert [record["status"] for record in records] == ["finished"] * len(UNITS)
    until(lambda: 'http-equiv="refresh"' not in Path("swept", "sweep.html").read_text())


@pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not())
def test_an_array_of_slurm(place: Place, tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> None:
    """One worker is out of time and is requeued; a cancelled array is not; the same command ends the sweep."""
    options = ("--workers", "2", "--on", "slurm", "--gpu-type", "none", "--mem", "50")
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm"), cpus=2) as conf:
        monkeypatch.setenv("SLURM_CONF", str(conf))
        job = place.everstep(*SWEEP, *options).split()[1]
        until(lambda: all(Path(f"swept/trials/{number}/run.json").is_file() for number in range(2)))
        output_of("scancel", "--signal=USR1", "--batch", f"{job}_0")
        until(lambda: "PD" in queue(job))
        output_of("scancel", job)
        until(lambda: not queue(job))
        job = place.everstep(*SWEEP, *options).split()[1]
        until(lambda: begin_now(job) and not queue(job))
        require_all_complete()


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def queue(job: str) -> list[str]:
    """The states of the array's tasks that are not over."""
    done = subprocess.run(["squeue", "--noheader", "--format", "%t", "--jobs", job], capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install 'ray[default]')")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_jobs_of_ray(place: Place, tmp_path: Path) -> None:
    with ray_cluster(tmp_path / "ray.log") as address:
        printed = place.everstep(*SWEEP, "--workers", "2", "--on", "ray", "--address", address)
        assert "(ray, 2 workers)" in printed
        require_all_complete()


@contextlib.contextmanager
def ray_cluster(log: Path) -> Iterator[str]:
    """A cluster of one node in a session of its own; only this one is ended."""
    words = ["start", "--head", "--block", "--include-dashboard=true", "--dashboard-host=127.0.0.1", "--num-cpus=2"]
    words += ["--port=26380", "--dashboard-port=28266", "--node-ip-address=127.0.0.1", "--disable-usage-stats"]
    program = shutil.which("ray") or str(Path(sys.executable).with_name("ray"))
    with open(log, "w") as out:
        head = subprocess.Popen([program, *words], stdout=out, stderr=out, start_new_session=True)
    try:
        until(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None)
        assert head.poll() is None, log.read_text()
        from ray.job_submission import JobSubmissionClient

        def answers() -> bool:
            with contextlib.suppress(ConnectionError, RuntimeError):
                return bool(JobSubmissionClient("http://127.0.0.1:28266"))
            return False

        until(answers)
        yield "http://127.0.0.1:28266"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGTERM)
        head.wait(300)
