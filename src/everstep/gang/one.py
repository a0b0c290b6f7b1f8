"""`Gang`: what the processes of a run can say to each other, for a single process."""

import contextlib
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from everstep.gang.coordinates import Member


class Gang:
    """A gang of one process: it agrees with itself, at no cost. `ServiceGang` has the same methods for several.

    What else processes agree on is made of these methods, in `agreements.py`. A `name` says in messages what a meeting
    is about.

    Attributes:
      rank: The number of this process, from 0.
      size: The number of processes.
    """

    rank = 0
    size = 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that writes and prints for all."""
        return self.rank == 0

    @property
    def members(self) -> Sequence[Member]:
        """All processes, by rank."""
        return [Member(0, socket.gethostname(), os.getpid())]

    # Meetings: all processes make the same calls in the same order, in their main threads.

    def share(self, name: str, value: Any) -> Any:
        """Returns the value of the first process, which must be JSON; the first process does not wait."""
        return value

    def gather(self, name: str, value: Any) -> list[Any]:
        """Returns the values of all processes by rank; they must be JSON."""
        return [value]

    # Messages, at any time and from any thread.

    def broadcast(self, key: str, value: Any) -> None:
        """Tells the other processes a value, which must be JSON, under a key that is used once; they `receive` it."""

    def receive(self, key: str, gives_up: Callable[[], bool] = lambda: False) -> Any:
        """Waits for the value that another process broadcasts under a key; None once `gives_up` returns True."""
        return None

    def forget(self, key: str) -> None:
        """Removes a value of this process, or all whose keys begin with `key/`, when all processes meet next.

        By then, all have received it.
        """

    def request_stop(self, reason: str) -> None:
        """Requests of all processes that they stop; the first reason counts."""

    def requested_stop(self, at_once: bool = False) -> str | None:
        """Returns why any process has requested a stop, a few seconds ago or before; None if none has.

        Args:
          at_once: Whether to ask now, so that a request of the last seconds is known, too.
        """
        return None

    # The lives of the others.

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which this process waits for the others otherwise, as for their part of a sum.

        If it waits long, those that do not are named: they are slow.
        """
        return contextlib.nullcontext()

    def fail(self, cause: str, exit_code: int = 1) -> bool:
        """Tells the others that this process fails alone: they end with the same cause and exit code.

        Returns:
          Whether the first process prints the cause, so that this one need not.
        """
        return False
