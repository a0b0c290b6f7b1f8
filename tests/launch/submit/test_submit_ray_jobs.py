"""A Ray that has lost a job: its dashboard is a small server that answers as Ray's does."""

import contextlib
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from everstep.errors import UsageError
from everstep.launch.submit import on_ray, ray_jobs
from everstep.launch.submit.submissions import Queues, newest, require_none_under_way

JOB = "my project_a-20300101-000000-abcd"


class Dashboard(HTTPServer):
    """Knows some jobs, and counts who asks."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.jobs: dict[str, str] = {}
        self.asked: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Dashboard

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        name = self.path.removeprefix("/api/jobs/").replace("%20", " ")
        status = self.server.jobs.get(name)
        body = f"Job {name} does not exist" if status is None else json.dumps({"status": status, "type": "SUBMISSION"})
        self.send_response(404 if status is None else 200 if status else 500)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with Dashboard() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def submission(run: Path, address: str | None, started: bool = False) -> Path:
    folder = run / "submissions" / "20300101-000000-abcd"
    folder.mkdir(parents=True)
    record = {"id": "x", "engine": "ray", "job": JOB, "address": address, "submitted": "2030-01-01T00:00:00+00:00"}
    (folder / "submission.json").write_text(json.dumps(record))
    if started:
        (folder / "started.json").write_text("{}")
    return run


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", "queued"),
        ("RUNNING", "queued"),
        ("STOPPED", "killed"),
        ("FAILED", "killed"),
        ("SUCCEEDED", "killed"),
        ("DREAMING", "queued"),
        ("", "queued"),
        (None, "killed"),
    ],
)
def test_a_job_that_has_not_begun(tmp_path: Path, dashboard: Dashboard, status: str | None, state: str) -> None:
    """What Ray says and nobody knows, or an error of its own, is no reason to give a job up."""
    dashboard.jobs = {} if status is None else {JOB: status}
    run = submission(tmp_path, dashboard.address)
    found = newest(run)
    assert found is not None
    assert found.state == state
    with contextlib.nullcontext() if state == "killed" else pytest.raises(UsageError, match="submitted already"):
        require_none_under_way(run)
    assert dashboard.asked[0] == f"/api/jobs/{JOB.replace(' ', '%20')}"


def test_a_dashboard_that_is_silent_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_jobs, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        runs = [submission(tmp_path / name, f"http://127.0.0.1:{silent.getsockname()[1]}") for name in "abcde"]
        begun, queues = time.monotonic(), Queues()
        states = [found.state for run in runs if (found := newest(run, queues))]
    assert states == ["queued"] * 5
    assert time.monotonic() - begun < 1.2, "not five times as long"


@pytest.mark.parametrize("address", [None, "", "auto", "file:///etc/passwd", "http://127.0.0.1:1", "http://[", 7])
def test_addresses_where_nobody_can_be_asked(tmp_path: Path, address: str | None) -> None:
    found = newest(submission(tmp_path, address))
    assert found is not None
    assert found.state == "queued"


def test_the_address_that_was_given_is_the_one_that_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client prefers RAY_ADDRESS to what it is told; this one stands in for it."""
    module = ModuleType("ray.job_submission")
    module.JobSubmissionClient = lambda where: os.environ.get("RAY_ADDRESS", where)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    assert on_ray.connect(on_ray.address("http://here:8265")) == "http://here:8265"
    assert on_ray.connect(on_ray.address(None)) == os.environ["RAY_ADDRESS"] == "http://elsewhere:8265"
