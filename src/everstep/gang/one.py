"""`Gang`: what the processes of a run can agree on, for a single process."""

import contextlib
import hashlib
import json
import os
import socket
from collections.abc import Callable, Sequence
from typing import Any

from everstep.errors import UsageError
from everstep.gang.coordinates import Member


class Gang:
    """A gang of one process: it agrees with itself, at no cost. `ServiceGang` has the same methods for several.

    All processes call the same methods in the same order. A `name` says in messages what they agree on.
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

    def rows(self, count: int) -> slice:
        """Returns the part of a global batch of `count` samples that is this process's."""
        return slice(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    def barrier(self, name: str) -> None:
        """Returns when all processes have called it."""
        self.gather(name, None)

    def share(self, name: str, value: Any) -> Any:
        """Returns the value of the first process, which must be JSON; the first process does not wait."""
        return value

    def gather(self, name: str, value: Any) -> list[Any]:
        """Returns the values of all processes by rank; they must be JSON."""
        return [value]

    def any(self, name: str, flag: bool) -> bool:
        """Returns whether the flag is true on any process."""
        return any(self.gather(name, flag))

    def agree(self, name: str, value: Any, key: str = "", remedy: str = "") -> None:
        """Requires that the JSON value is the same on all processes.

        Args:
          name: What must be equal, as in a sentence: `the configuration`.
          value: The value of this process.
          key: The configuration key or option to change.
          remedy: What to do.

        Raises:
          UsageError: On every process, if any value differs; it names the processes and both values.
        """
        if values := self.differing(name, value):
            different = [rank for rank, other in enumerate(values) if other != values[0]]
            who = ", ".join(str(self.members[rank]) for rank in different)
            reason = f"{name} differs between the processes: {values[0]!r} on rank 0, but "
            raise UsageError(f"{reason}{values[different[0]]!r} on {who}", key=key, remedy=remedy)

    def differing(self, name: str, value: Any) -> list[Any]:
        """Returns the values of all processes by rank if they differ, else an empty list; only digests are compared."""
        digest = hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
        if len(set(self.gather(f"the digest of {name}", digest))) == 1:
            return []
        return self.gather(name, value)

    def waiting(self) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which this process waits for the others otherwise, as for their part of a sum.

        If it waits long, those that do not are named: they are slow.
        """
        return contextlib.nullcontext()

    def request(self, name: str, value: str) -> None:
        """Requests something of all processes; the first request of a name counts. Any thread may call it."""

    def requested(self, name: str) -> str | None:
        """Returns what any process has requested of all, a few seconds ago or before; None if nothing was."""
        return None

    def update_requests(self) -> None:
        """Reads now what was requested before, so that `requested` returns it without delay."""

    def publish(self, key: str, value: Any) -> None:
        """The first process: sets a value for the same thread of the others, who `hear` it. Each key is used once."""

    def hear(self, key: str, gives_up: Callable[[], bool]) -> Any:
        """The others: returns what the first process has published; None once `gives_up` returns True."""
        return None

    def forget(self, key: str) -> None:
        """The first process: removes a published value when all processes meet next, who have heard it by then."""

    def fail(self, cause: str, exit_code: int = 1) -> bool:
        """Tells the others that this process fails alone: they end with the same cause and exit code.

        Returns:
          Whether the first process prints the cause, so that this one need not.
        """
        return False

    def leave(self) -> None:
        """Ends the gang when its work is done; waits until all processes are done."""
