"""The state of jobs on Ray, read from a small server that answers as Ray's dashboard does."""

import contextlib
import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType

import pytest

from everstep.submit import ray
from everstep.submit.submissions import Queues, newest, require_not_submitted
from everstep.testing.problems import raises_problem

JOB = "my project_a-20300101-000000-abcd"


class Dashboard(HTTPServer):
    """Knows some jobs, and keeps the paths requested."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.jobs: dict[str, str] = {}
        self.requested: list[str] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answers(BaseHTTPRequestHandler):
    server: Dashboard

    def do_GET(self) -> None:
        self.server.requested.append(self.path)
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
    record = {"id": "x", "executor": "ray", "job": JOB, "address": address, "submitted": "2030-01-01T00:00:00+00:00"}
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
    """A status that is not known, or an error of the dashboard, does not make a job count as killed."""
    dashboard.jobs = {} if status is None else {JOB: status}
    run = submission(tmp_path, dashboard.address)
    found = newest(run)
    assert found is not None
    assert found.state == state
    with contextlib.nullcontext() if state == "killed" else raises_problem(key="run", reason="is already submitted"):
        require_not_submitted(run)
    assert dashboard.requested[0] == f"/api/jobs/{JOB.replace(' ', '%20')}"


def test_a_dashboard_that_does_not_answer_is_requested_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "SECONDS", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        runs = [submission(tmp_path / name, f"http://127.0.0.1:{silent.getsockname()[1]}") for name in "abcde"]
        queues = Queues()
        states = [found.state for run in runs if (found := newest(run, queues))]
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()
    assert states == ["queued"] * 5


@pytest.mark.parametrize("address", [None, "", "auto", "file:///etc/passwd", "http://127.0.0.1:1", "http://[", 7])
def test_addresses_without_a_dashboard(tmp_path: Path, address: str | None) -> None:
    found = newest(submission(tmp_path, address))
    assert found is not None
    assert found.state == "queued"


def test_the_given_address_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's client prefers RAY_ADDRESS to its argument; this stand-in does, too."""
    module = ModuleType("ray.job_submission")
    module.JobSubmissionClient = lambda where: os.environ.get("RAY_ADDRESS", where)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ModuleType("ray"))
    monkeypatch.setitem(sys.modules, "ray.job_submission", module)
    monkeypatch.setenv("RAY_ADDRESS", "http://elsewhere:8265")
    assert ray.connect(ray.dashboard_address("http://here:8265")) == "http://here:8265"
    assert ray.connect(ray.dashboard_address(None)) == os.environ["RAY_ADDRESS"] == "http://elsewhere:8265"
