"""`everstep ui`."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from everstep.cli import new_app
from everstep.errors import TrainingError, UsageError
from everstep.projects.flow import FlowProject
from everstep.run import signals_handled
from everstep.tracking import checked_uri, folder_uri, is_there, local_store, without_credentials

app = new_app()

_START_SECONDS = 120.0
_END_SECONDS = 10.0
_QUICK = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

Project = Annotated[
    str | None, typer.Option("--project", metavar="DIR", help="The project; by default the one around this folder.")
]
Host = Annotated[str, typer.Option(metavar="HOST", help="Where to listen; 0.0.0.0 lets other machines in.")]
Port = Annotated[int, typer.Option(metavar="N", help="MLflow's port.")]
TensorBoardPort = Annotated[int, typer.Option(metavar="N", help="TensorBoard's port.")]


@app.command(epilog="Example: everstep ui --port 5001")
def ui(
    project: Project = None, host: Host = "127.0.0.1", port: Port = 5000, tensorboard_port: TensorBoardPort = 6006
) -> None:
    """Show a project's runs in MLflow and TensorBoard.

    Prints both addresses once they answer; that of MLflow where runs are tracked already. Ctrl-C ends both. Only this
    machine can reach them, unless --host is given; everybody who reaches them can read, change and delete the runs.
    """
    root = _root(project)
    uri = checked_uri(folder_uri(root))
    if uri.startswith("http"):
        raise UsageError(
            "the runs are tracked on a server",
            key="MLFLOW_TRACKING_URI",
            received=without_credentials(uri),
            remedy="open that page",
        )
    for flag, number in (("--port", port), ("--tensorboard-port", tensorboard_port)):
        _require_free(host, number, flag)
    commands = {}
    if is_there(uri):
        artifacts = local_store(root).with_name("mlartifacts")
        options = ["--backend-store-uri", uri, "--workers", "1", "--artifacts-destination", str(artifacts)]
        commands["MLflow"] = (["mlflow", "ui", *options], port)
    else:
        print(f"MLflow       nothing is tracked yet: the first tracked run creates {local_store(root)}", flush=True)
    commands["TensorBoard"] = (["tensorboard.main", "--logdir", str(root / "runs")], tensorboard_port)
    stops: list[int] = []  # Ctrl-C and SIGTERM, so that everything is ended in order
    noted = signals_handled((signal.SIGINT, signal.SIGTERM), lambda number, frame: stops.append(number))
    with noted, contextlib.ExitStack() as stack:
        servers = {}
        for name, (words, number) in commands.items():
            command = [sys.executable, "-m", *words, "--host", host, "--port", str(number)]
            servers[name] = stack.enter_context(_Server(name, command, root))
        for name, server in servers.items():
            address = _address(host, commands[name][1])
            server.wait(address, stops)
            print(f"{name.ljust(11)}  {address}", flush=True)
        while not stops:  # a server that ends by itself is an error, which ends the other one, too
            for server in servers.values():
                server.require_alive()
            time.sleep(0.2)


def _root(project: str | None) -> Path:
    """Returns the project's folder; outside a project of flows, the given or the current folder, if it has runs."""
    try:
        return FlowProject.find(project).root
    except UsageError:
        root = Path(project or ".").expanduser().resolve()
        root = root.parent if root.name == "runs" else root
        if not (local_store(root).is_file() or (root / "runs").is_dir()):
            raise
        return root


def _address(host: str, port: int) -> str:
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"


def _require_free(host: str, port: int, flag: str) -> None:
    """Checks that a port is free.

    Raises:
      UsageError: Names the flag.
    """
    if not 0 < port < 65536:
        raise UsageError("expected a port from 1 to 65535", key=flag, received=port)
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(f"is no address of this machine: {error.strerror}", key="--host", received=host) from None
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            raise UsageError(
                f"{host}:{port} cannot be used ({error.strerror})", key=flag, remedy="choose another port"
            ) from None


class _Server:
    """One server in a process group of its own, so that its workers end with it; its output is kept in a file."""

    def __init__(self, name: str, command: Sequence[str], root: Path) -> None:
        self._name, self._command, self._root = name, command, root
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  __exit__ closes it
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> "_Server":
        self._process = subprocess.Popen(
            self._command,
            cwd=self._root,
            env=os.environ | _QUICK,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return self

    def __exit__(self, *error: Any) -> None:
        if self._process is not None:
            self._signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_SECONDS)
            self._signal(signal.SIGKILL)  # what is left of its process group
            self._process.wait()
        self._output.close()

    def _signal(self, number: int) -> None:
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, number)

    def wait(self, address: str, stops: list[int]) -> None:
        """Waits until the server answers, or a stop is requested.

        Raises:
          TrainingError: The server has ended, or takes too long.
        """
        end = time.monotonic() + _START_SECONDS
        while not stops and not _answers(address):
            self.require_alive()
            if time.monotonic() > end:
                raise TrainingError(f"{self._name} does not answer at {address} after {_START_SECONDS:.0f} s")
            time.sleep(0.1)

    def require_alive(self) -> None:
        """Checks that the server runs.

        Raises:
          TrainingError: It has ended; with the last line of its output.
        """
        if self._process is not None and self._process.poll() is not None:
            self._output.seek(0)
            lines = self._output.read().decode("utf-8", "replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "without output")
            raise TrainingError(f"{self._name} has ended: {last.strip()}")


def _answers(address: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for this machine
    try:
        opener.open(address, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
