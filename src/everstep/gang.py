"""The gang: the processes that train one run together. They start, stop and restart as one.

Every process runs the same program. What may differ between processes (a clock, a signal, a random number) is agreed
through the gang, so that all of them do the same steps in the same order:

    gang = current_gang()
    length = gang.share("call", my_length)  # what the first process says
    if gang.any("stop", my_flag):  # whether any process says so
        …

Without coordinates in the environment, `join` returns a gang of one process, which answers without any communication.
With them, values go through the coordination service of JAX, which is installed with every backend: the first process
runs it. Before that, `_roll_call` waits for all processes over plain sockets, so that a process that never comes, comes
twice, or expects another number is named in one line; the service itself would abort all others. Its connections stay
open until the service has connected everybody (`_watched`), for the same reason.

Bad input ends all processes with exit code 2, and the first one prints the reason: its own, or that of another process,
which tells it in the roll call (`refuse_together`), or afterwards through the service (`failing_together`).

Each process writes a heartbeat. The first process reads those of all others, and they read the first one's, together
with everything else that concerns all (`_NEWS`): a process that died or froze is named within a minute, and the others
end. So the work of the service grows with the number of processes, not with its square.
"""

import atexit
import contextlib
import dataclasses
import hashlib
import importlib
import json
import logging
import math
import os
import re
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from everstep import redaction
from everstep.errors import BadDataError, TrainingError, UsageError

logger = logging.getLogger(__name__)

COORDINATOR, PROCESS_ID, NUM_PROCESSES = "EVERSTEP_COORDINATOR", "EVERSTEP_PROCESS_ID", "EVERSTEP_NUM_PROCESSES"
JOIN_SECONDS = "EVERSTEP_JOIN_SECONDS"
"""The environment variable with the seconds to wait for all processes at the start."""

_JOIN_SECONDS = 300.0
_BEAT_SECONDS = 2.0
_LOST_SECONDS = 40.0
"""Without a heartbeat for so long, a process counts as lost; with the beats between, that is less than a minute."""
_SLOW_SECONDS = 60.0
_OWN_END_SECONDS = 2.0
_REFUSING_SECONDS = 20.0
"""How long a process that found its input bad waits for the others, to tell them."""
_READ_SECONDS = _BEAT_SECONDS + _OWN_END_SECONDS + 1.0
"""The service ends with the first process: the others, whom JAX would abort, need so long to read why it fails."""
_LEAVE_SECONDS = 60.0
_SERVICE_SECONDS = 3600
"""The limits of the service itself, which aborts the process: our own are always reached first."""

_BEATS = "everstep/beat"
"""The folder with the heartbeats of all processes but the first, which alone reads them."""
_NEWS = "everstep/news"
"""The folder that every process reads: the heartbeat of the first one, requests to all, the failure that ends all."""


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


@dataclasses.dataclass(frozen=True)
class Member:
    """One process of the gang."""

    rank: int
    host: str
    pid: int

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


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

    def request(self, name: str, value: str) -> None:
        """Requests something of all processes; the first request of a name counts. Any thread may call it."""

    def requested(self, name: str) -> str | None:
        """Returns what any process has requested of all, a few seconds ago or before; None if nothing was."""
        return None

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


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """If the block fails on this process, all processes of the gang end, with the same exit code.

    A requested stop is no failure: the processes have agreed on it, and wait until the first one has saved.
    """
    try:
        yield
    except SystemExit:
        current_gang().barrier("the end")
        raise
    except Exception as error:
        if isinstance(error, UsageError | BadDataError):
            error.announced |= current_gang().fail(_one_line(error), exit_code=2)
        else:
            current_gang().fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise


def refuse_together(error: UsageError, show: Callable[[], int], environment: Mapping[str, str] = os.environ) -> int:
    """Ends this process because of bad input; if it has not met the others yet, they get to know, and end, too.

    Otherwise they would wait for this one until their time is up. Only the first process shows the error.

    Args:
      error: What is wrong.
      show: Prints the error, and returns the exit code.
      environment: The environment variables.

    Returns:
      The exit code.
    """
    try:
        coordinates = find_coordinates(environment)
    except UsageError:  # nobody can be told
        coordinates = None
    if coordinates is None or coordinates.size == 1 or _has_met:
        return show()
    me = Member(coordinates.rank, socket.gethostname(), os.getpid())
    if me.rank == 0:
        code = show()
        with contextlib.suppress(UsageError):  # the port is taken: that may be the error
            _collect(coordinates, me, _REFUSING_SECONDS, _one_line(error))
        return code
    answer, lines = _say_hello(coordinates, me, _REFUSING_SECONDS, _one_line(error))
    error.announced = bool(lines)
    if lines:
        _wait_for_end(lines)
    return show()


def _one_line(error: Exception) -> str:
    return "; ".join(str(error).splitlines())


_ALONE = Gang()
_joined: Gang = _ALONE
_has_met = False  # whether this process has been in a roll call


def current_gang() -> Gang:
    """Returns the gang that this process has joined, else a gang of one."""
    return _joined


def join(spans_devices: bool = False, environment: Mapping[str, str] = os.environ) -> Gang:
    """Joins the gang that the environment names, once per process; later calls return the same gang.

    Args:
      spans_devices: Whether JAX's devices become those of all processes. Then no JAX computation may have run before.
      environment: The environment variables.

    Raises:
      UsageError: The coordinates are wrong, the port is taken, or not all processes came.
    """
    global _joined
    coordinates = find_coordinates(environment)
    if _joined is not _ALONE or coordinates is None or coordinates.size == 1:
        return _joined
    seconds = float(environment.get(JOIN_SECONDS) or _JOIN_SECONDS)
    members, lines = _roll_call(coordinates, seconds)
    with _watched(members, lines):
        _joined = gang = ServiceGang(coordinates, members, seconds, spans_devices)
    atexit.register(gang.leave)
    return gang


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
        port = 32768 + (int(environment["SLURM_JOB_ID"]) * 16 + int(environment.get("SLURM_STEP_ID") or 0)) % 28000
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


# -- the roll call -----------------------------------------------------------------------------------------------------


_Lines = dict[int, socket.socket]
"""The connections of a roll call: those of the first process to all others, by rank; of another one to the first."""


def _roll_call(coordinates: Coordinates, seconds: float) -> tuple[list[Member], _Lines]:
    """Waits until all processes have said who they are to the first one; returns them by rank, and the connections.

    Raises:
      UsageError: On every process that came, with the same reason; the first one is to print it.
    """
    global _has_met
    me = Member(coordinates.rank, socket.gethostname(), os.getpid())
    answer, lines = (_say_hello if me.rank else _collect)(coordinates, me, seconds)
    _has_met = True
    if "members" in answer:
        return [Member(*fields) for fields in answer["members"]], lines
    if answer["is_own"]:  # of a process, not of their meeting
        error = UsageError(answer["error"])
    else:
        error = UsageError(answer["error"], key=COORDINATOR, received=coordinates.address, remedy=answer["remedy"])
    if me.rank and lines:
        error.announced = True
        _wait_for_end(lines)
    else:
        _left_open.update(lines)
    raise error


_left_open: _Lines = {}
"""Connections of the first process that end with it: the others wait for that, so that it has printed the reason."""


def _wait_for_end(lines: _Lines) -> None:
    """Another process: waits until the first one has ended, and has printed why; a launcher may end all at once."""
    with contextlib.suppress(OSError), lines[0] as line:
        line.settimeout(_REFUSING_SECONDS)
        line.recv(1)


def _collect(coordinates: Coordinates, me: Member, seconds: float, refusal: str = "") -> tuple[dict[str, Any], _Lines]:
    """The first process: collects the others, and sends each the same answer.

    If something is wrong it still waits for those who have not come, but not long, so that they know it, too.
    """
    end, size = time.monotonic() + seconds, coordinates.size
    members, lines = {0: me}, []
    answer = {"error": refusal, "is_own": True} if refusal else {}
    with contextlib.closing(_listen(coordinates)) as listener:
        while len(members) < size:
            listener.settimeout(max(end - time.monotonic(), 0.01))
            try:
                line, _ = listener.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(size) if rank not in members)
                reason = f"rank {missing} of {size} processes did not come within {seconds:g} s"
                answer = answer or _wrong(reason, f"see its log, or raise {JOIN_SECONDS}")
                break
            try:
                line.settimeout(10)
                hello = json.loads(line.makefile("r").readline() or "null")
                member, expected = Member(*hello["member"]), hello["size"]
            except (OSError, ValueError, TypeError, KeyError):  # somebody else knocked at this port
                line.close()
                continue
            lines.append((member.rank, line))
            wrong = {}
            if hello.get("error"):
                wrong = {"error": f"{hello['error']} (on {member})", "is_own": True}
            elif expected != size:
                reason = f"{member} expects {expected} processes, but rank 0 expects {size}"
                wrong = _wrong(reason, f"set {NUM_PROCESSES} to the same number everywhere")
            elif member.rank in members:
                reason = f"{members[member.rank]} and {member} have the same rank"
                wrong = _wrong(reason, f"give each process its own {PROCESS_ID}")
            if wrong and not answer:
                answer, end = wrong, min(end, time.monotonic() + _REFUSING_SECONDS)
            members[member.rank] = member
    answer = answer or {"members": [dataclasses.astuple(members[rank]) for rank in range(size)]}
    text = (json.dumps(answer) + "\n").encode()
    for _, line in lines:
        with contextlib.suppress(OSError):
            line.sendall(text)
    return answer, dict(lines)


def _wrong(reason: str, remedy: str) -> dict[str, Any]:
    """Returns the answer of a roll call in which the processes do not fit together."""
    return {"error": reason, "remedy": remedy, "is_own": False}


def _listen(coordinates: Coordinates) -> socket.socket:
    host, port = coordinates.host_and_port
    try:
        local = host in ("127.0.0.1", "localhost")
        return socket.create_server(("127.0.0.1" if local else "", port), backlog=coordinates.size)
    except OSError as error:
        raise UsageError(
            f"rank 0 cannot use this port on {socket.gethostname()}: {os.strerror(error.errno or 0)}",
            key=COORDINATOR,
            received=coordinates.address,
            remedy="choose a port that is free on that machine",
        ) from None


def _say_hello(
    coordinates: Coordinates, me: Member, seconds: float, refusal: str = ""
) -> tuple[dict[str, Any], _Lines]:
    """Another process: tells the first one who it is, or why it cannot begin, and waits for its answer."""
    end = time.monotonic() + seconds
    hello = {"member": dataclasses.astuple(me), "size": coordinates.size, "error": refusal}
    while time.monotonic() < end:
        try:
            left = max(end - time.monotonic(), 1.0)
            with contextlib.ExitStack() as stack:
                line = stack.enter_context(socket.create_connection(coordinates.host_and_port, timeout=min(left, 10)))
                line.sendall((json.dumps(hello) + "\n").encode())
                line.settimeout(left + 10)  # the first process, which may have started later, gives up before
                answer = dict(json.loads(line.makefile("r").readline()))
                stack.pop_all()  # it stays open
                return answer, {0: line}
        except (OSError, ValueError):  # it does not listen yet, or has just died and may come again
            time.sleep(0.2)
    reason = f"rank 0 did not answer within {seconds:g} s"
    return _wrong(reason, f"see its log, or raise {JOIN_SECONDS}"), {}


_CONNECTED = b"connected"


@contextlib.contextmanager
def _watched(members: Sequence[Member], lines: _Lines) -> Iterator[None]:
    """If another process ends while the block connects to it, this process names it and ends, too."""
    finished = threading.Event()
    thread = threading.Thread(target=_watch_lines, args=(members, lines, finished), name="everstep-gang-lines")
    thread.daemon = True
    thread.start()
    try:
        yield
        for line in lines.values():
            with contextlib.suppress(OSError):
                line.sendall(_CONNECTED)
    finally:
        finished.set()
        thread.join()
        _close(lines)


def _watch_lines(members: Sequence[Member], lines: _Lines, finished: threading.Event) -> None:
    """Reads what the others say on their lines: that they are connected, or which process they miss."""
    lost = None
    with selectors.DefaultSelector() as selector:
        for rank, line in lines.items():
            selector.register(line, selectors.EVENT_READ, rank)
        while lost is None and selector.get_map() and not finished.is_set():
            for key, _ in selector.select(0.05):
                text = b""  # as of a line that its process has closed by ending
                with contextlib.suppress(OSError):
                    text = lines[key.data].recv(100)
                if text == _CONNECTED:
                    selector.unregister(key.fileobj)
                else:
                    lost = int(text) if text.isdigit() else key.data
    if lost is None or finished.wait(_OWN_END_SECONDS):  # this one may be failing for the same reason, and say so
        return
    for line in lines.values():
        with contextlib.suppress(OSError):
            line.sendall(str(lost).encode())
    print(f"everstep: {members[lost]} ended while the processes were connecting", file=sys.stderr, flush=True)
    os._exit(1)


def _close(lines: _Lines) -> None:
    for line in lines.values():
        line.close()


# -- several processes -------------------------------------------------------------------------------------------------


class _NotYet(Exception):
    """There is no value under a key yet."""


class ServiceGang(Gang):
    """Several processes that agree through JAX's coordination service, which runs in the first one.

    Args:
      coordinates: Where they meet.
      members: All processes, by rank.
      seconds: How long to wait for the service at the start.
      spans_devices: Whether JAX's devices become those of all processes.
    """

    def __init__(
        self, coordinates: Coordinates, members: Sequence[Member], seconds: float, spans_devices: bool
    ) -> None:
        self.rank, self.size, self._members = coordinates.rank, coordinates.size, members
        self._service, self._client = _connect(coordinates, seconds)
        self._spans_devices = spans_devices
        if spans_devices:
            _span_devices(coordinates, self._service, self._client)
        self._count = 0  # of the times that this process has met the others
        self._news: dict[str, str] = {}
        self._used: list[str] = []  # keys of this process that all others have read when they meet next
        self._left = threading.Event()
        self._lasts_until = 0.0  # what the others need this process for after its failure
        self._failure = threading.Lock()
        threading.Thread(target=self._beat, name="everstep-gang-beat", daemon=True).start()
        threading.Thread(target=self._watch, name="everstep-gang-watch", daemon=True).start()

    @property
    def members(self) -> Sequence[Member]:
        """All processes, by rank."""
        return self._members

    def share(self, name: str, value: Any) -> Any:
        """See `Gang.share`."""
        key = self._next_key()
        if not self.is_first:
            return self._get(f"{key}/all", name, 0)
        self._set(f"{key}/all", name, value)
        self._used.append(key)
        return value

    def gather(self, name: str, value: Any) -> list[Any]:
        """See `Gang.gather`: the first process collects the values and hands the list to all."""
        key = self._next_key()
        if not self.is_first:
            self._set(f"{key}/{self.rank}", name, value)
            return list(self._get(f"{key}/all", name, 0))
        values = [value, *(self._get(f"{key}/{rank}", name, rank) for rank in range(1, self.size))]
        for used in self._used:  # everybody is here, and has read what came before
            self._client.key_value_delete(used)
        self._set(f"{key}/all", name, values)
        self._used = [key]  # a prefix: with it go all keys of this gathering
        return values

    def request(self, name: str, value: str) -> None:
        """See `Gang.request`."""
        with contextlib.suppress(RuntimeError):  # requested already, or the gang is ending
            self._client.key_value_set(f"{_NEWS}/request/{name}", value)

    def requested(self, name: str) -> str | None:
        """See `Gang.requested`; it communicates only in the thread of the heartbeats."""
        return self._news.get(f"request/{name}")

    def publish(self, key: str, value: Any) -> None:
        """See `Gang.publish`."""
        self._set(f"everstep/published/{key}", key, value)

    def hear(self, key: str, gives_up: Callable[[], bool]) -> Any:
        """See `Gang.hear`."""
        while not gives_up():
            with contextlib.suppress(_NotYet):
                return self._wait_for(f"everstep/published/{key}", 0.1)["value"]
        return None

    def forget(self, key: str) -> None:
        """See `Gang.forget`."""
        self._used.append(f"everstep/published/{key}")

    def fail(self, cause: str, exit_code: int = 1) -> bool:
        """See `Gang.fail`. The process may not end before the others know it, and the first one has printed it."""
        if self._left.is_set():
            return False
        self._left.set()
        first_failed = self._publish_failure(self.rank, cause, exit_code)
        is_told = not self.is_first and exit_code == 2 and first_failed is not None
        if self.is_first:
            self._lasts_until = time.monotonic() + _READ_SECONDS
        elif is_told:
            self._lasts_until = time.monotonic() + (1.0 if first_failed == 0 else _READ_SECONDS - 0.5)
        return is_told

    def leave(self) -> None:
        """See `Gang.leave`."""
        if self._left.is_set():
            time.sleep(max(0.0, self._lasts_until - time.monotonic()))
            return
        self._left.set()
        with contextlib.suppress(RuntimeError):  # the service may be gone
            if self.is_first:  # the service ends with this process: the others may still be reading
                end = time.monotonic() + _LEAVE_SECONDS
                while len(self._all_under("everstep/left")) < self.size - 1 and time.monotonic() < end:
                    time.sleep(0.05)
            else:
                self._client.key_value_set(f"everstep/left/{self.rank}", "")
            self._client.shutdown()
        if self._service is not None:
            self._service.shutdown()
        if self._spans_devices:  # JAX would do it once more
            state = importlib.import_module("jax._src.distributed").global_state
            state.client = state.service = None

    def _next_key(self) -> str:
        self._count += 1
        return f"everstep/meet/{self._count}"

    def _set(self, key: str, name: str, value: Any) -> None:
        try:
            self._client.key_value_set(key, json.dumps({"name": name, "value": value}))
        except RuntimeError as error:
            self._raise_lost(error)

    def _get(self, key: str, name: str, rank: int) -> Any:
        """Waits for a value of a process, however long it works, as long as it lives: `_watch` finds those lost."""
        begin = time.monotonic()
        limit = _SLOW_SECONDS
        while True:
            with contextlib.suppress(_NotYet):
                found = self._wait_for(key, 5.0)
                self._check_place(rank, name, found["name"])
                return found["value"]
            if time.monotonic() - begin > limit:
                limit = math.inf
                self._say_where(name, rank)

    def _wait_for(self, key: str, seconds: float) -> dict[str, Any]:
        """Returns the value under a key.

        Raises:
          _NotYet: There was none within these seconds.
          TrainingError: The service is gone.
        """
        try:
            return dict(json.loads(self._client.blocking_key_value_get(key, int(1000 * seconds))))
        except RuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                raise _NotYet from None
            self._raise_lost(error)

    def _say_where(self, name: str, rank: int) -> None:
        """After a long wait: tells the others where this process waits, and looks where the awaited one does."""
        place = f"everstep/at/{self.rank}"
        self._client.key_value_set(place, json.dumps([self._count, name]), allow_overwrite=True)
        logger.warning(
            "%s waits for %s at %r for %d s", self._members[self.rank], self._members[rank], name, _SLOW_SECONDS
        )
        for key, there in self._client.key_value_dir_get("everstep/at"):
            count, other = json.loads(there)
            if key.endswith(f"/{rank}") and count == self._count:
                self._check_place(rank, name, other)

    def _check_place(self, rank: int, name: str, other: str) -> None:
        if name != other:
            here, there = self._members[self.rank], self._members[rank]
            raise TrainingError(
                f"the processes do not do the same: rank {here.rank} is at {name!r}, {there} is at {other!r}",
                remedy="hooks, actions and callbacks must decide the same on every process",
            )

    def _raise_lost(self, error: Exception) -> NoReturn:
        text = str(error).partition("\n")[0]
        raise TrainingError(f"the connection to {self._members[0]} is lost: {text}") from error

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def _beat(self) -> None:
        """Writes a heartbeat, reads the news, and looks at the heartbeats to watch; runs in a thread."""
        watched = range(1, self.size) if self.is_first else [0]
        own = f"{_NEWS}/beat" if self.is_first else f"{_BEATS}/{self.rank}"
        self._answered = time.monotonic()
        self._heard = {rank: (0, time.monotonic()) for rank in watched}
        count = 0
        while not self._left.wait(_BEAT_SECONDS):
            count += 1
            try:
                self._client.key_value_set(own, str(count), allow_overwrite=True)
                self._news = self._all_under(_NEWS)
                beats = self._all_under(_BEATS) if self.is_first else {"0": self._news.get("beat", "0")}
            except RuntimeError:
                continue
            now = time.monotonic()
            self._answered = now
            for rank in watched:
                beat = int(beats.get(str(rank), 0))
                if beat != self._heard[rank][0]:
                    self._heard[rank] = beat, now
            if failed := self._news.get("failed"):
                self._end(**json.loads(failed))

    def _all_under(self, folder: str) -> dict[str, str]:
        """Returns the values in a folder of the service by the rest of their keys."""
        return {key.partition(f"{folder}/")[2]: value for key, value in self._client.key_value_dir_get(folder)}

    def _watch(self) -> None:
        """Ends this process when another one is lost; a thread of its own, because a frozen service blocks `_beat`."""
        last = time.monotonic()
        while not self._left.wait(_BEAT_SECONDS):
            now = time.monotonic()
            slept, last = now - last, now
            if slept > 3 * _BEAT_SECONDS:  # this process stood still itself, and has heard nobody
                self._answered += slept
                self._heard = {rank: (beat, heard + slept) for rank, (beat, heard) in self._heard.items()}
                continue
            silent = [rank for rank, (_, heard) in self._heard.items() if now - heard > _LOST_SECONDS]
            if now - self._answered > _LOST_SECONDS:
                silent = [0]
            if silent:
                cause = f"no heartbeat for {_LOST_SECONDS:g} s: it died, is frozen, or cannot be reached"
                if self.is_first:
                    self._publish_failure(silent[0], cause, 1)
                self._end(silent[0], cause, 1)

    def _publish_failure(self, rank: int, cause: str, exit_code: int) -> int | None:
        """Tells all others of a failure; returns the rank whose failure they know, None if the service is gone."""
        line = {"rank": rank, "cause": cause, "exit_code": exit_code}
        try:
            self._client.key_value_set(f"{_NEWS}/failed", json.dumps(line))
        except RuntimeError:  # another failure is known already, or the service is gone
            with contextlib.suppress(RuntimeError, KeyError):
                return int(json.loads(self._all_under(_NEWS)["failed"])["rank"])
            return None
        return rank

    def _end(self, rank: int, cause: str, exit_code: int) -> None:
        """Ends this process because another one failed; what it has saved is safe at any instant."""
        if rank == self.rank or not self._failure.acquire(blocking=False):
            return
        if self._left.wait(_OWN_END_SECONDS):  # it may be failing for the same reason, and say so itself
            return
        if self.is_first or exit_code != 2:  # bad input is said once
            line = f"everstep: {self._members[rank]} failed: {redaction.text(cause)}"
            print(line, file=sys.stderr, flush=True)
        with contextlib.suppress(Exception):
            logging.shutdown()
        if self.is_first:
            time.sleep(_READ_SECONDS)
        elif exit_code == 2:
            time.sleep(_BEAT_SECONDS + 0.5)  # the first process may know of it one heartbeat later
        os._exit(exit_code)


def _connect(coordinates: Coordinates, seconds: float) -> tuple[Any, Any]:
    """Starts the service in the first process, and connects to it; returns service and client."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # else it prints a line per barrier
    runtime = importlib.import_module("jaxlib._jax")
    host, port = coordinates.host_and_port
    service = None
    if coordinates.rank == 0:
        local = host in ("127.0.0.1", "localhost")
        service = runtime.get_distributed_runtime_service(
            f"{'127.0.0.1' if local else '[::]'}:{port}",
            coordinates.size,
            heartbeat_timeout=_SERVICE_SECONDS,
            cluster_register_timeout=int(seconds),
            shutdown_timeout=30,
        )
    client = runtime.get_distributed_runtime_client(
        coordinates.address,
        coordinates.rank,
        init_timeout=int(seconds),
        heartbeat_timeout=_SERVICE_SECONDS,
        shutdown_timeout=30,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    return service, client


def _span_devices(coordinates: Coordinates, service: Any, client: Any) -> None:
    """Makes the devices of all processes one set for JAX, as `jax.distributed.initialize` does.

    Raises:
      UsageError: JAX has set up its devices already.
    """
    if importlib.import_module("jax._src.xla_bridge").backends_are_initialized():
        raise UsageError(
            "JAX has computed something before this process joined the others",
            key=COORDINATOR,
            received=coordinates.address,
            remedy="start with `everstep train`, or create Keras objects inside the task only",
        )
    state = importlib.import_module("jax._src.distributed").global_state
    state.process_id, state.num_processes = coordinates.rank, coordinates.size
    state.service, state.client, state.coordinator_address = service, client, coordinates.address
