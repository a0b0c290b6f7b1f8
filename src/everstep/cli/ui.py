"""`everstep ui`: the live page of runs; beside it MLflow and TensorBoard, where there is something to show."""

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from everstep.cli.command import new_app
from everstep.errors import TrainingError, UsageError
from everstep.report import RunsFolder, RunsServer
from everstep.run import signals_handled
from everstep.tracking import checked_uri, folder_uri, is_there, local_store, without_credentials

app = new_app()

PAGE_PORT, MLFLOW_PORT, TENSORBOARD_PORT = 7878, 5000, 6006

_START_SECONDS = 120.0
_END_SECONDS = 10.0
_QUICK = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}

Project = Annotated[
    str | None,
    typer.Option("--project", metavar="DIR", help="The folder with runs; by default the one around this folder."),
]
Host = Annotated[str, typer.Option(metavar="HOST", help="Where to listen; 0.0.0.0 lets other machines in.")]
PagePort = Annotated[
    int | None,
    typer.Option(metavar="N", help=f"The port of the page of runs; {PAGE_PORT}, or another one if it is taken."),
]
Port = Annotated[int | None, typer.Option(metavar="N", help=f"MLflow's port; {MLFLOW_PORT} by default.")]
TensorBoardPort = Annotated[
    int | None, typer.Option(metavar="N", help=f"TensorBoard's port; {TENSORBOARD_PORT} by default.")
]


@app.command(epilog="Example: everstep ui")
def ui(
    project: Project = None,
    host: Host = "127.0.0.1",
    page_port: PagePort = None,
    port: Port = None,
    tensorboard_port: TensorBoardPort = None,
) -> None:
    """Show runs in a browser: a live table, curves, reports.

    Prints the address of the page, which only reads. It links to MLflow, where runs are tracked in its database, and to
    TensorBoard; their addresses follow once they answer. Ctrl-C ends all. Only this machine can reach them, unless
    --host is given; everybody who reaches MLflow can change and delete the runs there.
    """
    root = _root(project)
    runs = root / "runs" if project is None or (root / "runs").is_dir() else root
    for flag, number in (("--page-port", page_port), ("--port", port), ("--tensorboard-port", tensorboard_port)):
        if number is not None:
            _require_free(host, number, flag)
    if page_port is None:
        page_port = PAGE_PORT if _is_free(host, PAGE_PORT) else 0
    stops: list[int] = []  # Ctrl-C and SIGTERM, so that everything is ended in order
    noted = signals_handled((signal.SIGINT, signal.SIGTERM), lambda number, frame: stops.append(number))
    with noted, contextlib.ExitStack() as stack:
        page = stack.enter_context(RunsServer(RunsFolder(runs), host, page_port))
        _say("runs", f"{_address(host, page.port)}   (those below {runs})")
        starting = {}
        for name, words, number in [*_mlflow(root, port, page.links), *_tensorboard(runs, tensorboard_port)]:
            if _is_free(host, number):
                command = [sys.executable, "-m", *words, "--host", host, "--port", str(number)]
                starting[name] = stack.enter_context(_Server(name, command, root)), _address(host, number)
            else:
                _say(name, f"port {number} is taken; another one: {_FLAGS[name]}")
        _watch(starting, page.links, stops)


_FLAGS = {"MLflow": "--port", "TensorBoard": "--tensorboard-port"}
_Page = tuple[str, Sequence[str], int]
"""A further page: its name, the words of its module, its port."""


def _mlflow(root: Path, port: int | None, links: dict[str, str]) -> Iterator[_Page]:
    """Yields MLflow where there is a database and a viewer; a server is a link at once."""
    try:
        uri = checked_uri(folder_uri(root))
    except UsageError as error:  # the package that reads the database is missing
        _say("MLflow", str(error))
        return
    if uri.startswith("http"):
        links["MLflow"] = without_credentials(uri)
        _say("MLflow", links["MLflow"])
    elif not is_there(uri):
        _say("MLflow", f"nothing is tracked yet: the first tracked run creates {local_store(root)}")
    elif importlib.util.find_spec("mlflow") is None:
        _say("MLflow", "is not installed: pip install 'everstep[ui]'")
    else:
        artifacts = local_store(root).with_name("mlartifacts")
        options = ["--backend-store-uri", uri, "--workers", "1", "--artifacts-destination", str(artifacts)]
        yield "MLflow", ["mlflow", "ui", *options], port or MLFLOW_PORT


def _tensorboard(runs: Path, port: int | None) -> Iterator[_Page]:
    if runs.is_dir():
        yield "TensorBoard", ["tensorboard.main", "--logdir", str(runs)], port or TENSORBOARD_PORT


def _watch(starting: dict[str, tuple["_Server", str]], links: dict[str, str], stops: list[int]) -> None:
    """Names and links every page once it answers, until a stop is requested; one that ends is a line."""
    begin, alive = time.monotonic(), dict(starting)
    while not stops:
        for name, (server, address) in list(alive.items()):
            try:
                server.require_alive()
                if name not in links and server.answers(address):
                    links[name] = address
                    _say(name, address)
                elif name not in links and time.monotonic() - begin > _START_SECONDS:
                    raise TrainingError(f"does not answer at {address} after {_START_SECONDS:.0f} s")
            except TrainingError as error:
                del alive[name]
                links.pop(name, None)
                _say(name, str(error))
        time.sleep(0.2)


def _say(name: str, text: str) -> None:
    print(f"{name.ljust(11)}  {text}", flush=True)


def _root(project: str | None) -> Path:
    """Returns the folder that has the folder `runs`: the given one, or the nearest around the current one.

    Raises:
      UsageError: The given folder does not exist.
    """
    folder = Path(project or ".").expanduser().resolve()
    if not folder.is_dir():
        raise UsageError("is no folder", key="--project", received=project)
    if folder.name == "runs":
        return folder.parent
    if project is not None:
        return folder
    around = (place for place in (folder, *folder.parents) if (place / "runs").is_dir() or local_store(place).is_file())
    return next(around, folder)


def _address(host: str, port: int) -> str:
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}"


def _is_free(host: str, port: int) -> bool:
    try:
        _require_free(host, port, "")
    except UsageError:
        return False
    return True


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
        self._command, self._root = command, root
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

    def answers(self, address: str) -> bool:
        """Returns whether the server answers at its address."""
        return _answers(address)

    def require_alive(self) -> None:
        """Checks that the server runs.

        Raises:
          TrainingError: It has ended; with the last line of its output.
        """
        if self._process is not None and self._process.poll() is not None:
            self._output.seek(0)
            lines = self._output.read().decode("utf-8", "replace").split("\n")
            last = next((line for line in reversed(lines) if line.strip()), "without output")
            raise TrainingError(f"has ended: {last.strip()}")


def _answers(address: str) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy for this machine
    try:
        opener.open(address, timeout=2).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True
