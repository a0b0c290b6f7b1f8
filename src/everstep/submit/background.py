"""The executor that needs no queue: a process on this machine that survives the closing of its terminal."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from everstep.errors import TrainingError
from everstep.run import STARTED
from everstep.submit.request import SubmitRequest

_SECONDS_TO_START = 60.0


def start(request: SubmitRequest, snapshot: Path, max_restarts: int, of_gang: Sequence[str] = ()) -> str:
    """Starts the job in a session of its own; returns its process id once it has begun.

    Args:
      request: The run.
      snapshot: The folder of the snapshot.
      max_restarts: The maximum number of restarts.
      of_gang: Options of `everstep launch`, if several processes train together.

    Raises:
      TrainingError: It ended before that.
    """
    command = request.job_command(snapshot, max_restarts, "--log", str(request.directory), *of_gang)
    no_input = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ours = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    pid = os.posix_spawn(command[0], command, os.environ, file_actions=[no_input], setsid=True, setsigdef=ours)
    deadline = time.monotonic() + _SECONDS_TO_START
    while time.monotonic() < deadline and not (snapshot / STARTED).exists():
        with contextlib.suppress(ChildProcessError):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended and not (snapshot / STARTED).exists():
                code = os.waitstatus_to_exitcode(status)
                raise TrainingError(
                    f"the job ended with exit code {code} before it had begun", remedy=f"see {request.log_file(pid)}"
                )
        time.sleep(0.02)
    return str(pid)
