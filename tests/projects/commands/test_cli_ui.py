"""`everstep ui`: both pages answer, on this machine only, and end together."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from everstep.projects.commands import ui
from everstep.projects.project_tracking import tracking_uri
from everstep.testing.servers.proxy import free_port
from everstep.tracking.mlflow import create_database, default_uri

pytestmark = pytest.mark.slow


def project(folder):
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "parameters.yaml").write_text("")
    (folder / "pyproject.toml").write_text('[project]\nname = "pages"\n')
    (folder / "runs").mkdir()
    return folder


def answers(port):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}", timeout=300) as page:
        return page.status == 200


def is_closed(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.full
def test_both_pages_answer_and_end_together(tmp_path):
    ports = free_port(), free_port()
    create_database(tmp_path / "mlflow.db")
    command = [sys.executable, "-m", "everstep", "ui", "--port", str(ports[0]), "--tensorboard-port", str(ports[1])]
    process = subprocess.Popen(command, cwd=project(tmp_path), stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        lines = [process.stdout.readline(), process.stdout.readline()]
        assert [line.split() for line in lines] == [
            ["MLflow", f"http://127.0.0.1:{ports[0]}"],
            ["TensorBoard", f"http://127.0.0.1:{ports[1]}"],
        ]
        assert all(map(answers, ports))
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
        process.stdout.close()
    assert all(map(is_closed, ports))


def test_a_port_that_is_taken_is_named(everstep, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path / "pages"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = everstep("ui", "--port", str(port))
    assert done.code == 2
    assert f"--port: 127.0.0.1:{port} cannot be used" in done.err


def test_outside_a_project(everstep):
    done = everstep("ui")
    assert done.code == 2
    assert "no project in" in done.err


def test_the_pages_create_no_store(everstep, tmp_path, monkeypatch):
    """TensorBoard is opened, and MLflow is not: an empty store would hide runs that are tracked elsewhere later."""
    opened = []

    class Server:
        def __init__(self, name, command, root):
            opened.append(name)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def wait(self, address, stops):
            stops.append(signal.SIGINT)

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(ui, "_Server", Server)
    (tmp_path / "plain" / "runs").mkdir(parents=True)
    for root in (project(tmp_path / "pages"), tmp_path / "plain"):
        done = everstep(
            "ui", "--project", str(root), "--port", str(free_port()), "--tensorboard-port", str(free_port())
        )
        assert done.code == 0
        assert f"nothing is tracked yet: the first tracked run creates {root / 'mlflow.db'}" in done.out
        assert not list(root.rglob("*.db"))
        (root / "mlflow.db").touch()
        done = everstep(
            "ui", "--project", str(root), "--port", str(free_port()), "--tensorboard-port", str(free_port())
        )
        assert done.code == 0
    assert opened == ["TensorBoard", "MLflow", "TensorBoard"] * 2


def test_every_entry_point_has_the_same_store(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    wanted = f"sqlite:///{tmp_path / 'mlflow.db'}"
    assert default_uri(tmp_path / "runs" / "mlp-1") == tracking_uri(tmp_path) == wanted
    assert default_uri(tmp_path / "elsewhere") == wanted, "beside a run that is not in a folder of runs"
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "mlflow.db").touch()
    former = f"sqlite:///{tmp_path / 'runs' / 'mlflow.db'}"
    assert default_uri(tmp_path / "runs" / "mlp-1") == tracking_uri(tmp_path) == former, (
        "as earlier versions created it"
    )
