"""A real MLflow server on this machine that can be stopped, paused and started again, and what it has recorded."""

import collections
import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep.testing.servers.proxy import free_port

_START_SECONDS = 120.0


class MlflowServer:
    """`mlflow server` over a SQLite database, one worker, on a free port of 127.0.0.1.

    Example:
      with MlflowServer(folder).running() as server:
          server.wait()
          MlflowClient(server.uri)

    Args:
      folder: Where the database and the artifacts are kept.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self.uri = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts it, without waiting until it answers."""
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--backend-store-uri", f"sqlite:///{self._folder}/server.db", "--workers", "1"]
        command += ["--artifacts-destination", str(self._folder / "artifacts")]
        quick = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, env=os.environ | quick, cwd=self._folder
            )

    def wait(self) -> None:
        """Waits until it answers."""
        end = time.monotonic() + _START_SECONDS
        while not self._answers():
            if time.monotonic() > end or self._process is None or self._process.poll() is not None:
                raise RuntimeError(f"mlflow server did not start: {(self._folder / 'server.log').read_text()}")
            time.sleep(0.05)

    def pause(self) -> None:
        """Makes it accept connections and answer nothing."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it go on, with what has come in meanwhile."""
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """Ends it at once, with its workers."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def copy_database(self, path: Path) -> None:
        """Copies its database: a quick way to one that is not empty of tables."""
        shutil.copy(self._folder / "server.db", path)

    @contextlib.contextmanager
    def running(self) -> Iterator["MlflowServer"]:
        """Starts it for a block, and ends it after."""
        self.start()
        try:
            yield self
        finally:
            self.kill()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=2)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@contextlib.contextmanager
def memory_folder() -> Iterator[Path]:
    """Makes a folder in memory where the machine has a place for that: a database on disk takes longer to create."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        yield Path(folder)


Points = collections.Counter[tuple[str, int, float]]
"""How often each (name, step, value) is there."""


def client_of(uri: str) -> Any:
    """Returns MLflow's own client; imported only here, because that takes seconds."""
    from mlflow.tracking import MlflowClient

    return MlflowClient(uri)


def runs_of(uri: str, experiment: str) -> list[Any]:
    """Returns the MLflow runs of an experiment."""
    client = client_of(uri)
    found = client.get_experiment_by_name(experiment)
    return [] if found is None else list(client.search_runs([found.experiment_id]))


def points_of(uri: str, run: Any) -> Points:
    """Returns every metric point of a run, with repeats."""
    client = client_of(uri)
    histories = (client.get_metric_history(run.info.run_id, name) for name in run.data.metrics)
    return collections.Counter((m.key, m.step, m.value) for history in histories for m in history)
