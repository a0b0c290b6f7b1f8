"""On a real Slurm of one node: queued, running, out of time, requeued and resumed, cancelled."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_cluster
from submit_place import Place, begin_now, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.full,
    pytest.mark.skipif(bool(slurm_cluster.why_not()), reason=slurm_cluster.why_not()),
]

OPTIONS = ("--on", "slurm", "--gpu-type", "none", "--mem", "100")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with slurm_cluster.cluster(tmp_path_factory.mktemp("slurm")) as conf:
        yield conf


@pytest.fixture
def place(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setenv("SLURM_CONF", str(slurm))
    return Place(tmp_path, monkeypatch)


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def job(printed: str) -> str:
    return printed.split()[1]


def test_a_job_whose_time_is_up_saves_is_requeued_and_resumes(place: Place) -> None:
    number = job(place.submit(3, *OPTIONS))
    assert place.listed()["state"] in (f"queued (slurm {number})", f"running (slurm {number})", "running")
    until(lambda: place.has_steps(5))
    assert place.listed()["state"] == "running"
    assert "MAX_JOBS" not in place.submit(1, *OPTIONS, code=2)

    output_of("scancel", "--signal=USR1", "--batch", number)  # what Slurm itself sends two minutes before the end
    until(lambda: place.record()["status"] == "interrupted")
    until(lambda: place.listed()["state"] == f"queued (slurm {number})")
    until(lambda: begin_now(number) and len(place.record()["attempts"]) == 2)
    until(lambda: place.listed()["submission"]["state"] == "ended")
    assert place.record()["status"] == "finished"
    first, second = place.record()["attempts"]
    assert second["from_step"] == first["to_step"] > 0
    assert place.listed()["submission"]["code"] == 0
    log = (place.run / f"log-{number}.err").read_text()
    assert f"the time is up: job {number} is requeued" in log
    assert (place.run / f"log-{number}.out").read_text().count("version first") == 2


def test_a_cancelled_job_saves_and_is_not_requeued(place: Place) -> None:
    number = job(place.submit(60, *OPTIONS))
    until(lambda: place.has_steps(2))
    output_of("scancel", number)
    until(lambda: place.record()["status"] == "interrupted")
    until(lambda: number not in output_of("squeue", "--noheader", "--format", "%i").split())
    until(lambda: place.listed()["state"] == "interrupted")


def test_a_waiting_job_is_queued_and_killed_after_it_is_cancelled(place: Place) -> None:
    ahead = output_of("sbatch", "--parsable", "--mem=10", "--wrap", "sleep 60").strip()  # the cluster has one processor
    try:
        number = job(place.submit(1, *OPTIONS))
        assert place.listed()["state"] == f"queued (slurm {number})"
        assert f"slurm {number} waits in the queue: scancel {number} ends it" in place.submit(1, *OPTIONS, code=2)
        output_of("scancel", number)
        assert place.listed()["state"] == "killed"
    finally:
        output_of("scancel", ahead)


def test_the_clusters_refusal_is_shown(place: Place) -> None:
    printed = place.submit(1, "--on", "slurm", "--gpu-type", "v100", code=2)
    assert printed.startswith("everstep: error: --on: received 'slurm', sbatch refused: sbatch: error: ")
    assert printed.count("\n") == 1
    assert not (place.run / "submissions").exists()
