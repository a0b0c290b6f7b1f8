"""`everstep ui`: both pages answer on this machine alone, and end together."""

import os
import signal
import socket
import subprocess
import sys
import urllib.request

import pytest

from everstep.testing.proxy import free_port


def project(folder):
    (folder / "config").mkdir(parents=True)
    (folder / "config" / "parameters.yaml").write_text("")
    (folder / "pyproject.toml").write_text('[project]\nname = "pages"\n')
    (folder / "runs").mkdir()
    return folder


def answers(port):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://127.0.0.1:{port}", timeout=20) as page:
        return page.status == 200


def is_closed(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.full
def test_both_pages_answer_and_end_together(tmp_path):
    ports = free_port(), free_port()
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
        assert process.wait(60) == 0
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
