"""Where the processes of a gang meet, and which of them this one is: by their environment."""

import dataclasses
import os
import re
import socket
from collections.abc import Mapping

from everstep.errors import UsageError

COORDINATOR, PROCESS_ID, NUM_PROCESSES = "EVERSTEP_COORDINATOR", "EVERSTEP_PROCESS_ID", "EVERSTEP_NUM_PROCESSES"


@dataclasses.dataclass(frozen=True)
class Member:
    """One process of the gang."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


@dataclasses.dataclass(frozen=True)
class Coordinates:
    """Where the processes of a gang meet, and which of them this one is.

    Attributes:
      address: The host and port of the first process.
      rank: The number of this process, from 0.
      size: The number of processes.
    """

    address: str
    rank: int
    size: int

    @property
    def host_and_port(self) -> tuple[str, int]:
        """The address in its two parts."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_local(self) -> bool:
        """Whether all processes are on this machine, so that nobody else needs to reach their ports."""
        return self.host_and_port[0] in ("127.0.0.1", "localhost")

    def this_process(self) -> Member:
        """Returns this process as a member of the gang."""
        return Member(self.rank, socket.gethostname(), os.getpid())


def find_coordinates(environment: Mapping[str, str] = os.environ) -> Coordinates | None:
    """Returns the coordinates in the environment: our own variables, or those of a step of Slurm; None without any.

    In an Indexed Job of Kubernetes, `JOB_COMPLETION_INDEX` is the rank if `EVERSTEP_PROCESS_ID` is not set.

    Raises:
      UsageError: A variable is missing or wrong.
    """
    address, size = environment.get(COORDINATOR), environment.get(NUM_PROCESSES)
    rank = environment.get(PROCESS_ID) or environment.get("JOB_COMPLETION_INDEX")
    if address or size:
        given = {COORDINATOR: address, PROCESS_ID: rank, NUM_PROCESSES: size}
        if missing := [name for name, value in given.items() if not value]:
            set_ones = ", ".join(name for name, value in given.items() if value)
            raise UsageError(f"is not set, but {set_ones} is", key=missing[0], remedy="set all three, or none")
        return _coordinates(str(address), _number(PROCESS_ID, rank), _number(NUM_PROCESSES, size))
    if int(environment.get("SLURM_STEP_NUM_TASKS") or 1) > 1:
        nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
        job, step = int(environment["SLURM_JOB_ID"]), int(environment.get("SLURM_STEP_ID") or 0)
        port = 61440 + (job + 257 * step) % 4096  # above those that Linux gives to outgoing connections
        tasks = int(environment["SLURM_STEP_NUM_TASKS"])
        return _coordinates(f"{first_node(nodes)}:{port}", int(environment["SLURM_PROCID"]), tasks)
    return None


def first_node(nodes: str) -> str:
    """Returns the first name in a node list of Slurm, such as `gpu[07-09,12],big1`."""
    found = re.match(r"([^\[,]*)(?:\[([^\],-]*)[^\]]*\]([^,]*))?", nodes)
    return "".join(part or "" for part in found.groups()) if found else nodes


def _coordinates(address: str, rank: int, size: int) -> Coordinates:
    if not re.fullmatch(r".+:\d+", address):
        raise UsageError("expected host:port", key=COORDINATOR, received=address)
    if size < 1:
        raise UsageError("must be at least 1", key=NUM_PROCESSES, received=size)
    if not 0 <= rank < size:
        raise UsageError(f"must be 0 to {size - 1}, as {NUM_PROCESSES} is {size}", key=PROCESS_ID, received=rank)
    return Coordinates(address, rank, size)


def _number(name: str, text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        raise UsageError("expected a number", key=name, received=text) from None
