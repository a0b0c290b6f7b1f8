"""One running command."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence

from everstep.errors import UsageError
from everstep.launch.exit_status import Death
from everstep.launch.passing import Passing

_GRACE_SECONDS = 30.0


class Child:
    """A command in a process group of its own, so that a Ctrl-C at the terminal does not reach it past us.

    Standard output is ours, standard error passes through us, standard input is empty: a command that may have to
    start again cannot talk to anybody.

    Args:
      command: Program and arguments.
      environment: Its environment.

    Raises:
      UsageError: There is no such program.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._stderr = Passing()
        try:
            self._process = subprocess.Popen(
                list(command),
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stderr=self._stderr.child_end,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise UsageError(f"cannot start {command[0]!r}: {reason}; check the command after --") from error
        finally:
            self._stderr.begin()

    def send(self, number: int) -> None:
        """Sends the command itself a signal: what it has started is its own business."""
        self._process.send_signal(number)

    def wait(self) -> Death:
        """Waits till the command has ended."""
        death = Death(self._process.wait())
        self._stderr.end()
        return death

    def last_lines(self) -> list[str]:
        """Returns what it wrote last on standard error."""
        return self._stderr.last_lines()

    def end_the_rest(self) -> bool:
        """Ends what a dead command has left behind in its group: first asks, and after a while does not ask.

        A worker that outlives its trainer keeps memory and devices that the next attempt needs; behind a dead shell
        script stands a trainer that still has to save.

        Returns:
          Whether there was something.
        """
        if not self._group_lives():
            return False
        for number, seconds in ((signal.SIGTERM, _GRACE_SECONDS), (signal.SIGKILL, 1.0)):
            with contextlib.suppress(OSError):
                os.killpg(self._process.pid, number)
            if self._group_ends_within(seconds):
                break
        return True

    def _group_ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self._group_lives():
                return True
            time.sleep(0.05)
        return False

    def _group_lives(self) -> bool:
        with contextlib.suppress(OSError):
            os.waitpid(-self._process.pid, os.WNOHANG)  # as process 1 of a container we inherit the orphans
        try:
            os.killpg(self._process.pid, 0)
        except OSError:
            return False
        return True
