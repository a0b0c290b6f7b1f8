"""The pages of a project: `everstep ui`, and plain `mlflow ui` in its folder: the same run, to this machine alone."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import mlflow
import pytest

from everstep.cli.main import main
from everstep.flow import run_flow
from everstep.testing.servers.mlflow_server import MlflowServer
from everstep.testing.servers.proxy import free_port

pytestmark = [pytest.mark.slow, pytest.mark.full]


def opened(url, data=None):
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(url, data and json.dumps(data).encode(), {"Content-Type": "application/json"})
    with opener.open(request, timeout=300) as page:
        return page.read()


@contextlib.contextmanager
def served(words, root, port):
    """Runs a server in a project's folder, until the block ends."""
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    process = subprocess.Popen(
        [sys.executable, "-m", *words], cwd=root, env=env, stdout=subprocess.DEVNULL, start_new_session=True
    )
    try:
        for _ in range(1200):
            with contextlib.suppress(OSError):
                opened(f"http://127.0.0.1:{port}/health")
                break
            time.sleep(0.1)
        yield
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)


def shown(port, name):
    """What the page's own interface has: the run's numbers, and the bytes of its picture."""
    api = f"http://127.0.0.1:{port}/ajax-api/2.0/mlflow"
    experiments = json.loads(opened(f"{api}/experiments/search", {"max_results": 10}))["experiments"]
    wanted = [each["experiment_id"] for each in experiments if each["name"] == "numbers_exp"]
    runs = json.loads(opened(f"{api}/runs/search", {"experiment_ids": wanted}))["runs"]
    (run,) = [run for run in runs if run["info"]["run_name"] == name]
    numbers = {metric["key"]: metric["value"] for metric in run["data"]["metrics"]}
    picture = f"http://127.0.0.1:{port}/get-artifact?path=training.png&run_uuid={run['info']['run_id']}"
    return numbers, opened(picture)


def reachable_from_outside(port):
    """Whether a server listens on another address of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # nothing is sent: it tells which address is used for others
        address = probe.getsockname()[0]
    with socket.socket() as probe:
        return probe.connect_ex((address, port)) == 0


@pytest.mark.parametrize("command", ["everstep", "mlflow"])
def test_a_page_shows_the_run_with_its_picture(finished, command):
    root, port = finished.directory.parent.parent, free_port()
    words = [command, "ui", "--port", str(port)]
    with served([*words, "--tensorboard-port", str(free_port())] if command == "everstep" else words, root, port):
        numbers, picture = shown(port, finished.directory.name)
        assert not reachable_from_outside(port)
    assert finished.metrics.items() <= numbers.items()
    assert picture == (finished.directory / "training.png").read_bytes()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_server_that_is_gone_stops_nothing_and_gets_the_rest_later(project, monkeypatch, tmp_path):
    server = MlflowServer(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    done = run_flow("Numbers_A", [], project, verbose=False)
    assert json.loads((done.directory / "run.json").read_text())["status"] == "finished"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with server.running():
        server.wait()
        assert main(("runs", "sync", str(done.directory))) == 0
        client = mlflow.MlflowClient(server.uri)
        experiment = client.get_experiment_by_name("numbers_exp")
        (run,) = client.search_runs([experiment.experiment_id])
        assert run.info.status == "FINISHED"
        assert done.metrics.items() <= run.data.metrics.items()
        assert "training.png" in {file.path for file in client.list_artifacts(run.info.run_id)}
