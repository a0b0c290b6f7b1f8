"""The supervised command as several processes on a Ray cluster that train one run together.

Ray reserves the place of each process in a placement group. In each place an actor runs the command as a process of its
node, and reports to the launcher, which shows the output of the first process and decides about restarts: to it, the
processes are those of a `ChildGang`. A process ends with its actor, so that nothing is left where a launcher is lost.
"""

import contextlib
import dataclasses
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from everstep import gang, storage
from everstep.errors import UsageError, missing_extra
from everstep.launch.child import Child, ExitStatus
from everstep.launch.child_gang import ChildGang, ProcessCount, RankLog, reserve_port
from everstep.run import SUPERVISOR, announced

_PATIENCE_SECONDS = 10.0
"""How long to wait for a place before the user is told."""
_START_SECONDS = 120.0
_SILENT_SECONDS = 60.0
_END_SECONDS = 40.0

_PASSED_ON = re.compile(
    "(CUBLAS|CUDA|EVERSTEP|GLOO|JAX|KERAS|KMP|LC|MKL|NCCL|OMP|OPENBLAS|PYTHON|TF|TORCH|TRITON|XLA)_?.*"
    "|(AWS|AZURE|EVAL|FSSPEC|GCS|GOOGLE|HF|HUGGINGFACE|MLFLOW|S3|WANDB)_.*"  # of stores and trackers
    "|LANG|LD_LIBRARY_PATH|LD_PRELOAD|PATH|TZ|VIRTUAL_ENV"
    "|(HTTPS?|NO|ALL)_PROXY|(https?|no|all)_proxy|REQUESTS_CA_BUNDLE|SSL_CERT_(DIR|FILE)"
)
"""The variables of the launcher that a process gets; all others are those of its node.

Ray keeps what it is sent in the memory of the nodes, where whoever may use the cluster can read it: a token that the
run does not need stays with the launcher.
"""

_OF_THE_NODE = {"CUDA_VISIBLE_DEVICES"}
"""Variables that a process takes from its node all the same."""

_TIE = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "  # PR_SET_PDEATHSIG, SIGKILL
    "os.getppid() == int(sys.argv[1]) or sys.exit(1); os.execv(sys.argv[2], sys.argv[2:])"
)
"""A program that becomes another one, which ends with the process that started it."""


class RayCluster:
    """A cluster on which gangs are started.

    Args:
      address: The cluster; None for that of `RAY_ADDRESS`, or the one on this machine.
      cpus: Processors of each process.
      gpus: GPUs of each process; None for one, if the cluster has any.

    Raises:
      UsageError: Ray is not installed, no cluster answers, or a number is out of range.
    """

    def __init__(self, address: str | None = None, cpus: int = 1, gpus: int | None = None) -> None:
        if cpus < 1:
            raise UsageError("must be at least 1", key="--n-cpu", received=cpus)
        if gpus is not None and gpus < 0:
            raise UsageError("must be 0 or more", key="--gpus", received=gpus)
        _connect(address)
        if gpus is None:
            gpus = int(any(node.get("GPU") for node in _nodes()))
        self.bundle = {"CPU": cpus, **({"GPU": gpus} if gpus else {})}
        self._has_started = False

    def start(self, command: Sequence[str], environment: Mapping[str, str], count: ProcessCount) -> "RayGang":
        """Starts a gang; it waits for its places if the cluster is busy, or has lost a node since the last time.

        Raises:
          UsageError: The cluster is too small, and this is the first start.
        """
        if not self._has_started and self.room() < count.least:
            raise UsageError(
                f"the cluster has room for {self.room()} processes with {_text(self.bundle)} each: {self.describe()}",
                key="--processes",
                received=str(count),
                remedy="start fewer, request less for each, or add nodes (ray start --address=…)",
            )
        self._has_started = True
        return RayGang(self, command, environment, count)

    def room(self) -> int:
        """Returns how many processes the living nodes can hold, if nothing else runs on them."""
        return sum(int(min(node.get(key, 0) // need for key, need in self.bundle.items())) for node in _nodes())

    def describe(self) -> str:
        """Returns what the nodes have."""
        nodes = [_text({key: node.get(key, 0) for key in ("CPU", "GPU")}) for node in _nodes()]
        return f"{len(nodes)} nodes with {'; '.join(sorted(set(nodes)))}"


class RayGang(ChildGang):
    """Several processes of one command on a cluster; to a supervisor, it is one child.

    Args:
      cluster: The cluster.
      command: Program and arguments.
      environment: The environment of the launcher; `passed_on` says which of it the processes get.
      count: How many processes to start; an elastic gang takes the places that there are.
    """

    def __init__(
        self, cluster: RayCluster, command: Sequence[str], environment: Mapping[str, str], count: ProcessCount
    ) -> None:
        super().__init__([])
        self._cluster, self._command, self._environment, self._count = cluster, command, environment, count
        self._received: list[int] = []
        self._left_running = False

    def send(self, number: int) -> None:
        """Sends a signal to every process; before there is one, it is kept."""
        self._received.append(number)
        super().send(number)

    def wait(self) -> ExitStatus:
        """Waits for the places, then for the end of all processes; gives the places back."""
        from ray import exceptions
        from ray.util import remove_placement_group

        group = self._reserve()
        if group is None:
            return ExitStatus(-self._received[0])
        try:
            self._start(group)
            status = super().wait()
            if status.exit_code != 0:
                self._left_running = super().end_process_group()
            return status
        except (exceptions.RayActorError, exceptions.GetTimeoutError) as error:
            return _Lost(-signal.SIGKILL, who="a node of the cluster", why=_first_line(error))
        except exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, UsageError) else error) from None
        finally:
            for child in self._children:
                child.release()
            with contextlib.suppress(Exception):  # it goes with the launcher at the latest
                remove_placement_group(group)

    def last_lines(self) -> list[str]:
        """Returns the last lines of every process, those of the first one at the end."""
        return super().last_lines() if self._children else []

    def end_process_group(self) -> bool:
        """Returns whether the processes had left anything running, which `wait` has ended."""
        return self._left_running

    def _reserve(self) -> Any:
        """Returns a placement group when it is ready; None if a signal has come before."""
        from ray.util import placement_group, remove_placement_group

        begin, size, group, told = time.monotonic(), 0, None, False
        while not self._received:
            room = self._cluster.room()
            wanted = self._count.limited_to(room)
            if wanted != size:
                self._count.say_if_fewer(room)
                if group is not None:
                    remove_placement_group(group)
                size, group = wanted, placement_group([self._cluster.bundle] * wanted, strategy="PACK")
            if group is not None and group.wait(0.5):
                return group
            if time.monotonic() - begin > _PATIENCE_SECONDS and not told:
                told = True
                needs = f"{size} processes with {_text(self._cluster.bundle)} each"
                _print(f"waiting for room for {needs}; the cluster has {self._cluster.describe()}")
        if group is not None:
            remove_placement_group(group)
        return None

    def _start(self, group: Any) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle = self._cluster.bundle
        actors = [
            ray.remote(Worker)
            .options(
                num_cpus=bundle["CPU"],
                num_gpus=bundle.get("GPU", 0),
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank),
            )
            .remote()
            for rank in range(group.bundle_count)
        ]
        link = Path(self._environment[SUPERVISOR])
        environment = passed_on(self._environment) | {
            gang.COORDINATOR: ray.get(actors[0].free_address.remote(), timeout=_START_SECONDS),
            gang.NUM_PROCESSES: str(len(actors)),
        }
        places = ray.get(
            [
                actor.start.remote(list(self._command), environment | {gang.PROCESS_ID: str(rank)}, os.getcwd(), rank)
                for rank, actor in enumerate(actors)
            ],
            timeout=_START_SECONDS,
        )
        for rank, (actor, (host, pid)) in enumerate(zip(actors, places, strict=True)):
            outputs = (_to(1), _to(2)) if rank == 0 else (RankLog(rank, link).write,) * 2
            self._children.append(_RayProcess(actor, host, pid, outputs, link if rank == 0 else None))
        for number in self._received:
            super().send(number)


@dataclasses.dataclass(frozen=True)
class _Report:
    """What a worker reports of its process.

    Attributes:
      returncode: How it ended, as `subprocess` has it; None while it runs.
      stopped: Whether it is stopped by a signal.
      out: What it has written to standard output since the last report.
      err: The same of standard error.
      lines: The last lines of standard error, once it has ended.
      announcement: The run that it has announced.
    """

    returncode: int | None
    stopped: bool
    out: bytes
    err: bytes
    lines: list[str]
    announcement: dict[str, Any] | None


class Worker:
    """The actor in one place of the cluster: it runs one process on its node. The launcher calls its methods."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._out, self._err = bytearray(), bytearray()
        self._folder = tempfile.TemporaryDirectory(prefix="everstep-")
        self._link = Path(self._folder.name, "run.json")

    def free_address(self) -> str:
        """Returns the address of this node, with a port that is free."""
        import ray

        host = ray.util.get_node_ip_address()
        self._port = reserve_port(host)
        return f"{host}:{self._port.getsockname()[1]}"

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], directory: str, rank: int
    ) -> tuple[str, int]:
        """Starts the process; returns its host and pid.

        Raises:
          UsageError: The node has no such directory or program.
        """
        host = socket.gethostname()
        program = shutil.which(command[0], path=environment.get("PATH"))
        if not os.path.isdir(directory) or program is None:
            missing = command[0] if os.path.isdir(directory) else directory
            raise UsageError(
                f"there is no such file on {host}",
                key="COMMAND",
                received=missing,
                remedy="all nodes need the same folders and programs as the launcher",
            )
        os.chdir(directory)
        own = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        own |= {SUPERVISOR: str(self._link)} if rank == 0 else {}
        tied = [sys.executable, "-S", "-c", _TIE, str(os.getpid()), program, *command[1:]]
        self._child = Child(tied, own | dict(environment), self._err.extend, self._out.extend)
        return host, self._child.pid

    def report(self, signals: Sequence[int]) -> _Report:
        """Sends signals to the process, and returns how it is."""
        if self._child is None:
            raise RuntimeError("the process has not been started")
        for number in signals:
            self._child.send(number)
        ended = self._child.ended()
        if ended is not None:
            self._child.wait()  # for the rest of its output
        lines = [] if ended is None else self._child.last_lines()
        run = announced(self._link)
        announcement = None if run is None else {**dataclasses.asdict(run), "model_dir": str(run.model_dir)}
        stopped = self._child.is_stopped()
        code = None if ended is None else ended.returncode
        return _Report(code, stopped, _drain(self._out), _drain(self._err), lines, announcement)

    def end(self) -> bool:
        """Ends what the process left running; returns whether there was anything."""
        return self._child is not None and self._child.end_process_group()


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of the launcher that its processes on other machines get."""
    kept = {SUPERVISOR, *_OF_THE_NODE}
    return {key: value for key, value in environment.items() if _PASSED_ON.fullmatch(key) and key not in kept}


class _RayProcess:
    """One process of the gang, as the launcher sees it: what its actor last reported.

    Args:
      actor: The actor that runs it.
      host: The machine that it runs on.
      pid: Its number there.
      outputs: Where its standard output and its standard error go.
      link: The file that gets the announcement of the run; None for all but the first process.
    """

    def __init__(
        self,
        actor: Any,
        host: str,
        pid: int,
        outputs: tuple[Callable[[bytes], None], Callable[[bytes], None]],
        link: Path | None,
    ) -> None:
        self.host, self.pid = host, pid
        self._actor, self._outputs, self._link = actor, outputs, link
        self._signals: list[int] = []
        self._status: ExitStatus | None = None
        self._last: _Report | None = None
        self._ask()

    def send(self, number: int) -> None:
        """Sends a signal with the next question: this may be a signal handler, in the middle of a call of Ray."""
        self._signals.append(number)

    def ended(self) -> ExitStatus | None:
        """Returns how the process ended; None while it runs, as far as is known."""
        import ray
        from ray import exceptions

        if self._status is not None:
            return self._status
        if not ray.wait([self._answer], timeout=0)[0]:
            if time.monotonic() - self._asked > _SILENT_SECONDS:
                why = f"it did not answer for {_SILENT_SECONDS:g} s"
                self._status = _Lost(-signal.SIGKILL, why=why)
            return self._status
        try:
            self._read(ray.get(self._answer))
        except exceptions.RayError as error:
            self._status = _Lost(-signal.SIGKILL, why=_first_line(error))
        return self._status

    def wait(self) -> ExitStatus:
        """Waits for the end of the process."""
        while (status := self.ended()) is None:
            time.sleep(0.1)
        return status

    def is_stopped(self) -> bool:
        """Whether the process is stopped by a signal."""
        return self._last is not None and self._last.stopped

    def last_lines(self) -> list[str]:
        """Returns the last lines that the process wrote to standard error."""
        return [] if self._last is None else self._last.lines

    def end_process_group(self) -> bool:
        """Ends what the process left running; returns whether there was anything."""
        import ray

        with contextlib.suppress(Exception):  # without its actor, it is gone
            return bool(ray.get(self._actor.end.remote(), timeout=_END_SECONDS))
        return False

    def release(self) -> None:
        """Ends the actor, and with it the process."""
        import ray

        with contextlib.suppress(Exception):
            ray.kill(self._actor)

    def _ask(self) -> None:
        signals, self._signals = self._signals, []
        self._answer, self._asked = self._actor.report.remote(signals), time.monotonic()

    def _read(self, report: _Report) -> None:
        self._last = report
        for data, write in zip((report.out, report.err), self._outputs, strict=True):
            if data:
                write(data)
        if self._link is not None and report.announcement is not None:
            storage.write_json(self._link, report.announcement)
        if report.returncode is not None:
            self._status = ExitStatus(report.returncode)
        else:
            self._ask()


@dataclasses.dataclass(frozen=True)
class _Lost(ExitStatus):
    """The end of a process whose node or Ray worker is gone."""

    why: str = ""

    @property
    def reason(self) -> str:
        """The short form."""
        return "lost"

    def __str__(self) -> str:
        return f"was lost with its node or its Ray worker ({self.why})"


def _connect(address: str | None) -> None:
    try:
        import ray
    except ImportError as error:
        raise missing_extra("ray[default]", "ray", "--on ray") from error
    key = "RAY_ADDRESS" if not address and os.environ.get("RAY_ADDRESS") else "--address"
    where = address or os.environ.get("RAY_ADDRESS") or "auto"
    if where.startswith(("http://", "https://")):
        raise UsageError(
            "expected the address of a cluster such as 10.0.0.1:6379, not that of its dashboard",
            key=key,
            received=where,
        )
    try:
        ray.init(address=where, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"no Ray cluster answers ({_first_line(error)})",
            key=key,
            received=where,
            remedy="ray start --head starts one",
        ) from error


def _nodes() -> list[dict[str, float]]:
    """Returns what each living node of the cluster has."""
    import ray

    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _text(resources: Mapping[str, float]) -> str:
    return ", ".join(f"{count:g} {key}" for key, count in resources.items())


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split()).partition(". ")[0][:200]


def _drain(data: bytearray) -> bytes:
    """Takes what is there; a thread may append to it at any time."""
    taken = bytes(data)
    del data[: len(taken)]
    return taken


def _to(descriptor: int) -> Callable[[bytes], None]:
    def write(data: bytes) -> None:
        with contextlib.suppress(OSError):  # a closed output must not end the run
            while data:
                data = data[os.write(descriptor, data) :]

    return write


def _print(text: str) -> None:
    _to(2)(f"everstep: {text}\n".encode(errors="replace"))
