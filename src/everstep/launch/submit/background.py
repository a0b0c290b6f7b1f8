"""The engine that is always there: a process on this machine that nobody's terminal takes with it."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path

from everstep.errors import TrainingError
from everstep.launch.submit.request import Request
from everstep.run.launcher import STARTED

_SECONDS_TO_START = 60.0


def job_command(request: Request, snapshot: Path, max_restarts: int, *more: str) -> list[str]:
    """Returns the command that an engine runs."""
    job = [
        sys.executable,
        "-m",
        "everstep.launch.submit.job",
        str(snapshot),
        "--max-restarts",
        str(max_restarts),
        *more,
    ]
    return [*job, "--", *request.command]


def start(request: Request, snapshot: Path, max_restarts: int) -> str:
    """Starts the job in a session of its own; returns its process number when it has begun.

    Raises:
      TrainingError: It ended before that.
    """
    command = job_command(request, snapshot, max_restarts, "--log", str(request.directory))
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[no_input], setsid=True, setsigdef=ours)
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline and not (snapshot / STARTED).exists():
        with contextlib.suppress(ChildProcessError):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended and not (snapshot / STARTED).exists():
                code = os.waitstatus_to_exitcode(status)
                raise TrainingError(f"the job ended with exit code {code} before it had begun: see {log(request, pid)}")
        time.sleep(0.02)
    return str(pid)


def log(request: Request, job: object) -> Path:
    """Returns the file with what a job says."""
    return request.directory / f"log-{job}.err"
