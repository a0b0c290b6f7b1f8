"""The supervised command as several processes that train one run together: `ChildGang`, on this machine `LocalGang`.

Each gets its coordinates in the environment (`everstep.gang`). They live and die together: when one has died or is
frozen, it is named, the others end, and the supervisor restarts all of them.
"""

import contextlib
import dataclasses
import logging
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import gang
from everstep.errors import UsageError
from everstep.launch.child import Child, ExitStatus
from everstep.run import STOPPED_ITSELF, SUPERVISOR, announced, log_file

logger = logging.getLogger(__name__)

_POLL_SECONDS = 0.1
_END_SECONDS = 10.0
"""After one process has failed, the others end by themselves within this time, or are killed: nothing is lost."""
_FROZEN_SECONDS = 30.0
_BUFFERED = 2**20
_BAD_INPUT = 2


@dataclasses.dataclass(frozen=True)
class ProcessCount:
    """How many processes to start: between two numbers, as many as this machine has devices for.

    Attributes:
      least: The smallest number that will do.
      most: The largest number.
      batch_size: The samples of a training batch, in which all processes have an equal part; 0 if it is unknown.
    """

    least: int
    most: int
    batch_size: int = 0

    @classmethod
    def parse(cls, text: str) -> "ProcessCount":
        """Returns the count that an option names: `4`, or `2..8`.

        Raises:
          UsageError: It is neither.
        """
        found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text.strip())
        least, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
        if not 1 <= least <= most:
            raise UsageError("expected a number, or two as in 2..8", key="--processes", received=text)
        return cls(least, most)

    def now(self) -> int:
        """Returns the number to start now: an elastic gang takes what is there, others do not ask."""
        if self.least == self.most:
            return self.most
        there = len(_gpus()) or len(os.sched_getaffinity(0))
        self.say_if_fewer(there)
        return self.limited_to(there)

    def limited_to(self, there: int) -> int:
        """Returns the number to start where there is room for so many: the largest that divides the batch.

        If none does, it is the largest of all: the processes know whether they can share the batch.
        """
        most = min(max(there, self.least), self.most)
        return next((size for size in range(most, self.least - 1, -1) if self.batch_size % size == 0), most)

    def say_if_fewer(self, there: int) -> None:
        """Logs that fewer processes are started than there is room for, and why."""
        size, most = self.limited_to(there), min(max(there, self.least), self.most)
        if size < most:
            logger.warning(
                "%d of %d possible processes are started: a training batch of %d samples is no multiple of %d",
                *(size, most, self.batch_size, most),
            )

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least}..{self.most}"


class ChildGang:
    """Several processes of one command; to a supervisor, it is one child.

    Args:
      children: The processes, by rank: those of this machine are of `Child`, those of a Ray cluster have its methods.
    """

    def __init__(self, children: Sequence[Any]) -> None:
        self._children = list(children)
        self._stopped_since: dict[int, float] = {}

    def send(self, number: int) -> None:
        """Sends a signal to every process."""
        for child in self._children:
            child.send(number)

    def wait(self) -> ExitStatus:
        """Waits for the end of all processes; returns how the one ended because of which the others did."""
        culprit: ExitStatus | None = None
        deadline = float("inf")
        while True:
            ends = [child.ended() for child in self._children]
            found = self._first_failure(ends)
            if culprit is None and found is not None:
                culprit, deadline = found, time.monotonic() + _END_SECONDS
            elif culprit and found and _is_consequence(culprit) and not _is_consequence(found):
                culprit = found  # the end of a process on another machine may be known later than its consequences
            if all(ends) or time.monotonic() > deadline:
                break
            time.sleep(_POLL_SECONDS)
        self._kill()
        statuses = [child.wait() for child in self._children]
        if culprit is not None and culprit.returncode == _BAD_INPUT and statuses[0].returncode != _BAD_INPUT:
            self._show_bad_input(statuses)
        # Without a failure all have ended alike: done, or after a requested stop.
        return culprit or max(statuses, key=lambda status: status.returncode)

    def last_lines(self) -> list[str]:
        """Returns the last lines of every process, those of the first one at the end."""
        others = [
            f"[{rank}] {line}" for rank, child in enumerate(self._children) if rank for line in child.last_lines()[-5:]
        ]
        return [*others, *self._children[0].last_lines()]

    def end_process_group(self) -> bool:
        """Ends what the processes left running; returns whether there was anything."""
        left = [child.end_process_group() for child in self._children]
        return any(left)

    def _first_failure(self, ends: Sequence[ExitStatus | None]) -> ExitStatus | None:
        """Returns how a process failed; of several at once, the one that did not fail because of another."""
        failed = {rank: end for rank, end in enumerate(ends) if end is not None and _is_failure(end)}
        frozen = [rank for rank, end in enumerate(ends) if end is None and self._is_frozen(rank)]
        stopped = [rank for rank in self._stopped_since if ends[rank] is None]
        if failed and not stopped:
            rank = min(failed, key=lambda rank: (_is_consequence(failed[rank]), rank))
            return dataclasses.replace(failed[rank], who=self._name(rank))
        if frozen or (failed and stopped):
            rank = (frozen or stopped)[0]
            return Frozen(-signal.SIGKILL, who=self._name(rank))
        return None

    def _is_frozen(self, rank: int) -> bool:
        """Whether a process has been stopped, as by SIGSTOP, for so long that it must be killed."""
        if not self._children[rank].is_stopped():
            self._stopped_since.pop(rank, None)
            return False
        since = self._stopped_since.setdefault(rank, time.monotonic())
        return time.monotonic() - since > _FROZEN_SECONDS

    def _show_bad_input(self, statuses: Sequence[ExitStatus]) -> None:
        """Shows what a process has refused alone, before it met the others: its output is shown nowhere else."""
        rank = [status.returncode for status in statuses].index(_BAD_INPUT)
        for line in self._children[rank].last_lines():
            print(f"[{rank}] {line}", file=sys.stderr, flush=True)

    def _name(self, rank: int) -> str:
        return f"rank {rank} (pid {self._children[rank].pid} on {self._children[rank].host})"

    def _kill(self) -> None:
        for child in self._children:
            if child.ended() is None:
                child.send(signal.SIGKILL)


class LocalGang(ChildGang):
    """Several processes of one command on this machine.

    The output of the first process is shown. That of the others goes to `processes/<rank>.log` in the run directory.

    Args:
      command: Program and arguments.
      environment: The environment of the first process; the others do not announce the run.
      count: How many processes to start.

    Raises:
      UsageError: The program cannot be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], count: ProcessCount) -> None:
        super().__init__([])
        size, link = count.now(), Path(environment[SUPERVISOR])
        self._port = reserve_port("127.0.0.1")
        gpus, address = _gpus(), f"127.0.0.1:{self._port.getsockname()[1]}"
        for rank in range(size):
            coordinates = {
                gang.COORDINATOR: address,
                gang.PROCESS_ID: str(rank),
                gang.NUM_PROCESSES: str(size),
            }
            own = {key: value for key, value in environment.items() if key != SUPERVISOR or rank == 0}
            if len(gpus) >= size:
                part = gpus[len(gpus) * rank // size : len(gpus) * (rank + 1) // size]
                own["CUDA_VISIBLE_DEVICES"] = ",".join(part)
            write = RankLog(rank, link).write if rank else None
            try:
                self._children.append(Child(command, own | coordinates, write))
            except UsageError:
                self._kill()
                self._port.close()
                raise

    def wait(self) -> ExitStatus:
        """Waits for the end of all processes, and gives their port back."""
        with self._port:
            return super().wait()


@dataclasses.dataclass(frozen=True)
class Frozen(ExitStatus):
    """The end of a process that did not run any more, and was killed."""

    @property
    def reason(self) -> str:
        """The short form."""
        return "frozen"

    def __str__(self) -> str:
        return "was frozen (stopped by a signal), and is killed"


class RankLog:
    """Writes the output of a process to its file in the run directory, as soon as the first process announces that."""

    def __init__(self, rank: int, link: Path) -> None:
        self._rank, self._link = rank, link
        self._path: Path | None = None
        self._waiting = b""

    def write(self, data: bytes) -> None:
        """Appends to the file; until there is one, keeps the last part in memory."""
        if self._path is None and (run := announced(self._link)) is not None:
            self._path = log_file(run.model_dir, self._rank)
        self._waiting = (self._waiting + data)[-_BUFFERED:]
        if self._path is None:
            return
        with contextlib.suppress(OSError):  # a full disk must not stop the run
            self._path.parent.mkdir(exist_ok=True)
            with open(self._path, "ab") as file:
                file.write(self._waiting)
        self._waiting = b""


def _is_failure(end: ExitStatus) -> bool:
    """Whether a process ended otherwise than done, or after a requested stop, which all of them do together."""
    return end.returncode < 0 or (0 < end.returncode < 128 and end.returncode != STOPPED_ITSELF)


def _is_consequence(end: ExitStatus) -> bool:
    """Whether a process may have ended because another one did: it says so and exits, or JAX aborts it."""
    return end.returncode in (-signal.SIGABRT, 1)


def reserve_port(host: str) -> socket.socket:
    """Returns a socket with a free port, which the system gives to nobody else as long as the socket is open.

    A server that sets SO_REUSEADDR, as ours and gRPC's do, may listen there: this socket does not.
    """
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    one.bind((host, 0))
    return one


def _gpus() -> list[str]:
    """Returns the GPUs of this machine that processes may use, by number or id."""
    if "CUDA_VISIBLE_DEVICES" in os.environ:
        return [name for name in os.environ["CUDA_VISIBLE_DEVICES"].split(",") if name and name != "-1"]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        found = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=True)
        return [str(number) for number, line in enumerate(found.stdout.splitlines()) if line.startswith("GPU")]
    return []
