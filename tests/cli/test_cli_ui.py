"""`everstep ui`: its own page at once, MLflow and TensorBoard where there is something to show; they end together."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from everstep.cli import ui
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
def test_all_pages_answer_and_end_together(tmp_path):
    ports = free_port(), free_port(), free_port()
    create_database(tmp_path / "mlflow.db")
    flags = zip(("--page-port", "--port", "--tensorboard-port"), map(str, ports), strict=True)
    command = [sys.executable, "-m", "everstep", "ui", *(word for pair in flags for word in pair)]
    process = subprocess.Popen(command, cwd=project(tmp_path), stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        lines = [process.stdout.readline().split()[:2] for _ in ports]
        names = ("runs", "MLflow", "TensorBoard")
        assert lines[0][0] == "runs", "the own page needs nothing that takes long to start"
        assert dict(lines) == {name: f"http://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
        assert all(map(answers, ports))
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 0
        process.stdout.close()
    assert all(map(is_closed, ports))


def test_without_a_project_and_without_runs(tmp_path):
    """The page is there before the first run; nothing else is started."""
    command = [sys.executable, "-m", "everstep", "ui", "--page-port", str(port := free_port())]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline().split()[:2] == ["runs", f"http://127.0.0.1:{port}"]
        assert answers(port)
    finally:
        process.send_signal(signal.SIGTERM)
        with process.stdout:  # not `communicate`, which loses what came with the first line
            rest = process.stdout.read()
        process.wait(timeout=300)
    assert "nothing is tracked yet" in rest
    assert "TensorBoard" not in rest


def test_a_port_that_is_taken_is_named(everstep, tmp_path, monkeypatch):
    monkeypatch.chdir(project(tmp_path / "pages"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = everstep("ui", "--port", str(port))
    assert done.code == 2
    assert f"--port: 127.0.0.1:{port} cannot be used" in done.err


def test_a_folder_that_does_not_exist(everstep, tmp_path):
    done = everstep("ui", "--project", str(tmp_path / "none"))
    assert done.code == 2
    assert "is no folder" in done.err


def test_the_runs_around_this_folder(everstep, tmp_path, monkeypatch):
    monkeypatch.setattr(ui, "_watch", lambda *args: None)
    inside = project(tmp_path / "pages") / "src"
    inside.mkdir()
    for folder in (inside, tmp_path / "pages", tmp_path / "pages" / "runs"):
        monkeypatch.chdir(folder)
        assert f"(those below {tmp_path / 'pages' / 'runs'})" in everstep("ui", "--page-port", str(free_port())).out


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

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setattr(ui, "_Server", Server)
    monkeypatch.setattr(ui, "_watch", lambda *args: None)
    (tmp_path / "plain" / "runs").mkdir(parents=True)
    for root in (project(tmp_path / "pages"), tmp_path / "plain"):
        ports = [word for flag in ("--port", "--tensorboard-port") for word in (flag, str(free_port()))]
        done = everstep("ui", "--project", str(root), *ports)
        assert done.code == 0
        assert f"nothing is tracked yet: the first tracked run creates {root / 'mlflow.db'}" in done.out
        assert not list(root.rglob("*.db"))
        (root / "mlflow.db").touch()
        assert everstep("ui", "--project", str(root), *ports).code == 0
    assert opened == ["TensorBoard", "MLflow", "TensorBoard"] * 2


def test_a_tracking_server_is_only_a_link(everstep, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://someone:secret@mlflow.example:5000")
    links = []
    monkeypatch.setattr(ui, "_watch", lambda starting, found, stops: links.append(dict(found)))
    done = everstep("ui", "--project", str(tmp_path))
    assert "mlflow.example" in done.out
    assert links[0].keys() == {"MLflow"}
    assert "secret" not in done.out + links[0]["MLflow"]


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
