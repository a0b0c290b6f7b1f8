"""Processes that have Keras imported when they begin: `forked.run` and `forked.Popen`, for those of `subprocess`.

Most of the time of a short process goes into importing Keras and its backend, 2 to 4 CPU-seconds. A server per worker
of the tests imports them once, and forks for each process that a test starts. What it forks is a process like others:
a child of the test, with a pid, a working directory, an environment, standard streams and a session of its own, that
can be signalled, killed and waited for.

Use `subprocess` where the start of a process is what is tested: what it imports, what a backend prints when it is
loaded. Where processes must end with the same bits, let one of them come from here, and the others from `subprocess`
or be the test itself: processes of one server share the seed of Python's hashes, so that an order which depends on it
would not be noticed.

What is not the Python of this environment (or has options before `-c`, `-m` or the script) is started by `subprocess`,
and so is everything on systems other than Linux, and with an NVIDIA GPU: CUDA does not survive a fork.
"""

import atexit
import ctypes
import functools
import gc
import importlib
import inspect
import json
import os
import runpy
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from typing import Any

IMPORTED = ("keras", "everstep.cli.main", "everstep.experiment", "everstep.checkpoint.orbax", "everstep.testing.tasks")

READ_BY_IMPORTS = ("KERAS_", "JAX_", "XLA_", "TF_", "TORCH_", "OMP_", "PYTHON", "HOME", "LD_")
"""Beginnings of variables that are read before the fork: other values need another server. Not so `PYTHONPATH`."""

PIPES = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
PR_SET_CHILD_SUBREAPER = 36
EVERSTEP = str(Path(sys.executable).with_name("everstep"))
_LOCK = threading.Lock()  # of this process's being a subreaper, and of the servers


# -- in the test ------------------------------------------------------------------------------------------------------


def run(args: list[str], *, backend: str | None = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Runs a process to its end, as `subprocess.run` does."""
    timeout, check = options.pop("timeout", None), options.pop("check", False)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(args, backend=backend, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


class Popen(subprocess.Popen):
    """A process whose imports are done.

    Args:
      args: The command, as a list.
      backend: The backend whose Keras is imported. Unset: `KERAS_BACKEND` of its environment.
      **options: Those of `subprocess.Popen`.
    """

    def __init__(self, args: list[str], *, backend: str | None = None, **options: Any) -> None:
        self._backend = backend
        super().__init__(args, **options)

    def _execute_child(self, *arguments: Any) -> None:
        parameters = inspect.signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments
        words = [os.fspath(word) for word in parameters["args"]]
        environment = dict(os.environ if parameters["env"] is None else parameters["env"])
        backend = self._backend or environment.get("KERAS_BACKEND")
        own = words[0] == EVERSTEP or (words[0] == sys.executable and (words[1] in ("-c", "-m") or words[1][0] != "-"))
        if sys.platform != "linux" or os.path.exists("/dev/nvidiactl") or not own or not backend:
            super()._execute_child(*arguments)
            return
        streams = [parameters[name] for name in ("p2cread", "c2pwrite", "errwrite")]  # -1: that of this process
        request = {
            "words": words if words[0] == EVERSTEP else words[1:],
            "environment": environment,
            "directory": os.fspath(parameters["cwd"] or os.getcwd()),
            "session": bool(parameters["start_new_session"]),
        }
        fixed = {name: value for name, value in environment.items() if name.startswith(READ_BY_IMPORTS)}
        fixed |= {"KERAS_BACKEND": backend, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        with _LOCK:
            server = _server(json.dumps(fixed, sort_keys=True))
            self.pid = server.fork(request, [number if given == -1 else given for number, given in enumerate(streams)])
        self._child_created = True
        self._close_pipe_fds(*(parameters[name] for name in PIPES))


class Server:
    """The process that imports once; `fork` is answered with the pid of a new child of this process."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [sys.executable, __file__, str(theirs.fileno())]
            self.process = subprocess.Popen(
                command,
                env=environment,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        atexit.register(self.close)

    def fork(self, request: dict[str, Any], streams: list[int]) -> int:
        prctl = ctypes.CDLL(None).prctl
        prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)  # what the server's child leaves behind becomes a child of ours
        try:
            socket.send_fds(self.connection, [json.dumps(request).encode()], streams)
            answer = self.connection.recv(100)
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
        if not answer:
            raise ChildProcessError(f"the server has ended with {self.process.wait()}: see its standard error")
        pid, parent = map(int, answer.split())
        if parent != os.getpid():
            raise ChildProcessError(f"process {pid} is a child of {parent}, and was to be one of {os.getpid()}")
        return pid

    def close(self) -> None:
        self.connection.close()
        self.process.wait()


@functools.cache
def _server(fixed: str) -> Server:
    others = {name: value for name, value in os.environ.items() if not name.startswith(READ_BY_IMPORTS)}
    return Server(others | json.loads(fixed))


# -- in the server ----------------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> dict[str, Any]:
    """Imports, and forks for every request; returns the request in the process that carries it out."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    while True:
        message, streams, _, _ = socket.recv_fds(connection, 2**20, 3)
        if not message:
            os._exit(0)  # the tests have ended
        if child := os.fork():
            os.waitpid(child, 0)
            for stream in streams:
                os.close(stream)
            continue
        middle = os.getpid()
        if os.fork():
            os._exit(0)
        while os.getppid() == middle:
            time.sleep(0.001)
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        connection.sendall(f"{os.getpid()} {os.getppid()}".encode())
        connection.close()
        return json.loads(message)


def carry_out(request: dict[str, Any]) -> None:
    """Does what the new process is for; how it ends, by an error, an exit or the last line, is up to Python."""
    if request["session"]:
        os.setsid()
    os.chdir(request["directory"])
    before = os.environ.get("PYTHONPATH", "")
    os.environ.clear()
    os.environ.update(request["environment"])
    first, *others = request["words"]
    path = [str(Path(folder).resolve()) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
    given = {str(Path(folder).resolve()) for folder in [Path(__file__).parent, *before.split(os.pathsep)]}
    path += [folder for folder in sys.path if folder not in given]
    if first in ("-c", "-m"):
        sys.argv, sys.path[:] = [first, *others[1:]], ["" if first == "-c" else os.getcwd(), *path]
    else:
        sys.argv, sys.path[:] = [first, *others], [str(Path(first).resolve().parent), *path]
    if first == "-m":
        runpy.run_module(others[0], run_name="__main__", alter_sys=True)
        return
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        code = compile(others[0], "<string>", "exec")
    else:
        main.__file__ = first
        code = compile(Path(first).read_bytes(), first, "exec")
    exec(code, main.__dict__)


if __name__ == "__main__":
    carry_out(serve(socket.socket(fileno=int(sys.argv[1]))))
