"""How a sweep stops a trial after an evaluation: the trial waits until the sweep has seen its numbers.

The worker of a sweep listens on a socket, whose path the trial's process has in its environment. After each evaluation
the trial connects; the worker reads `history.csv`, sends SIGTERM if the trial is to stop, and only then closes the
connection. Without this a fast trial would be some evaluations further by the time a worker has looked.
"""

import contextlib
import logging
import os
import select
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from everstep.gang import current_gang
from everstep.loop import Hook
from everstep.run.signals import Interrupted

VARIABLE = "EVERSTEP_TRIAL_SOCKET"
"""The environment variable with the socket's path."""

_PATIENCE_SECONDS = 60.0  # a worker that answers later than this is stuck, or dead: the trial goes on

logger = logging.getLogger(__name__)


class PruningGate(Hook):
    """Lets the sweep look at each evaluation before the next window begins.

    Args:
      path: The worker's socket.
      stop_requested: Returns the exception to raise if a stop is requested.
    """

    def __init__(self, path: str, stop_requested: Callable[[], Interrupted | None]) -> None:
        self._path, self._stop_requested, self._is_due = path, stop_requested, False

    def on_evaluation_end(self, step: int, logs: dict[str, Any]) -> None:
        """Notes that there is something to look at; it is not logged yet."""
        self._is_due = True

    def on_window_begin(self, step: int) -> None:
        """Waits for the sweep, if there was an evaluation.

        Raises:
          Interrupted: The sweep has stopped the trial; the state is saved at this step.
        """
        if not self._is_due:
            return
        self._is_due = False
        self.controller.tracker.flush()
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(_PATIENCE_SECONDS)
                connection.connect(self._path)
                connection.recv(1)
        except OSError as error:
            after = f" within {_PATIENCE_SECONDS:g} s" if isinstance(error, TimeoutError) else f" ({error.strerror})"
            logger.warning("step %d: the sweep's worker did not answer%s; the trial goes on, not pruned", step, after)
        if (stop := self._stop_requested()) is not None:
            raise stop


def pruning_gates(stop_requested: Callable[[], Interrupted | None]) -> list[Hook]:
    """Returns the gate of a trial that may be pruned; none for any other run, and none for one of several processes."""
    path = os.environ.get(VARIABLE)
    return [PruningGate(path, stop_requested)] if path and current_gang().size == 1 else []


class PruningListener:
    """The worker's end of the socket.

    Args:
      listener: The listening socket.
      path: Its path, for the trial's environment.
    """

    def __init__(self, listener: socket.socket, path: str) -> None:
        self._listener, self.path = listener, path

    @contextlib.contextmanager
    def waiting_trial(self, seconds: float) -> Iterator[None]:
        """Waits at most so long for a trial that has evaluated; it trains on after the block."""
        ready, _, _ = select.select([self._listener], [], [], seconds)
        with self._listener.accept()[0] if ready else contextlib.nullcontext():
            yield


@contextlib.contextmanager
def listen_to_trials() -> Iterator[PruningListener]:
    """Opens a socket for the trials of one worker; it is removed with the block."""
    folder = tempfile.mkdtemp(prefix="everstep-")  # a socket's path must be short
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            path = str(Path(folder, "gate"))
            listener.bind(path)
            listener.listen()
            yield PruningListener(listener, path)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
