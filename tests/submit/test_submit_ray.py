"""Jobs on a real Ray of one node: one that finishes, and one that is stopped."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from submit_place import Place, until

from everstep.extras import install_command
from everstep.submit import ray as executor
from everstep.submit.submissions import newest

pytestmark = pytest.mark.slow

has_ray = importlib.util.find_spec("ray") is not None


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    return Place(tmp_path, monkeypatch)


@pytest.fixture(scope="module")
def dashboard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of one node in a session of its own; only this one is ended."""
    log = tmp_path_factory.mktemp("ray") / "ray.log"
    words = ["start", "--head", "--block", "--include-dashboard=true", "--dashboard-host=127.0.0.1"]
    words += [
        "--port=26379",
        "--dashboard-port=28265",
        "--node-ip-address=127.0.0.1",
        "--num-cpus=1",
        "--disable-usage-stats",
    ]
    ray = str(Path(sys.executable).with_name("ray"))
    with open(log, "w") as out:
        head = subprocess.Popen([ray, *words], stdout=out, stderr=out, start_new_session=True)
    try:
        until(lambda: "Ray runtime started" in log.read_text() or head.poll() is not None)
        assert head.poll() is None, log.read_text()
        yield "http://127.0.0.1:28265"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGTERM)
        head.wait(300)


@pytest.mark.full
@pytest.mark.skipif(not has_ray, reason="Ray is not installed (pip install 'ray[default]')")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
def test_jobs_on_ray(place: Place, dashboard: str) -> None:
    from ray.job_submission import JobStatus, JobSubmissionClient

    client = until(lambda: _client(JobSubmissionClient, dashboard))
    options = ("--on", "ray", "--address", dashboard)
    job = place.submit(1, *options).split()[1]
    until(lambda: client.get_job_status(job) == JobStatus.SUCCEEDED)
    assert place.record()["status"] == "finished"
    assert "version first from 0" in client.get_job_logs(job)
    assert place.listed()["state"] == "finished"
    assert (executor.has_job(dashboard, job), executor.has_job(dashboard, "lost")) == (False, False)

    (place.run / "run.json").unlink()
    job = place.submit(60, *options).split()[1]
    until(lambda: place.has_steps(2))
    assert place.listed()["state"] == "running"
    assert executor.has_job(dashboard, job)
    assert "ray job stop" in place.submit(1, *options, code=2)
    client.stop_job(job)
    until(lambda: place.record()["status"] == "interrupted")
    until(lambda: client.get_job_status(job) == JobStatus.STOPPED)
    assert (place.run / "checkpoints").is_dir(), "it has saved"

    snapshot = max((place.run / "submissions").iterdir())
    assert json.loads((snapshot / "submission.json").read_text())["address"] == dashboard
    for name in ("started.json", "ended.json"):
        (snapshot / name).unlink()
    found = newest(place.run)
    assert found is not None
    assert found.state == "killed", "Ray knows that it was stopped, whatever its job had time to record"


def _client(kind, dashboard):
    try:
        return kind(dashboard)
    except (ConnectionError, RuntimeError):
        return None


def test_ray_is_not_installed(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray.job_submission", None)
    printed = place.submit(1, "--on", "ray", code=2)
    assert printed == (
        "everstep: error: --on ray needs the package 'ray[default]', which is not installed: "
        f"{install_command('ray')}\n"
    )
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert "RAY_ADDRESS: received '10.0.0.1:6379', expected a dashboard's" in place.submit(1, "--on", "ray", code=2)
    assert not (place.run / "submissions").exists()


@pytest.mark.full
@pytest.mark.skipif(not has_ray, reason="Ray is not installed (pip install 'ray[default]')")
def test_no_cluster_answers(place: Place) -> None:
    printed = place.submit(1, "--on", "ray", "--address", "http://127.0.0.1:1", code=2)
    assert printed.startswith("everstep: error: --address: received 'http://127.0.0.1:1', no Ray cluster answers")
    assert printed.count("\n") == 1
