"""The roll call: the processes of a gang meet over plain sockets, before they use the coordination service.

    rank 0 listens at the coordinator's address                            _collect
    each other process tells it who it is, or why it cannot begin          _say_hello
    rank 0 sends all of them the same answer: the members, or what is wrong

So a process that never comes, comes twice, expects another number, or cannot begin is named in one line; the service
itself would abort all others. For the same reason, the connections stay open until the service has connected
everybody: who ends before is named, too (`watched`).
"""

import contextlib
import dataclasses
import json
import math
import os
import selectors
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from everstep.errors import UsageError
from everstep.gang.coordinates import COORDINATOR, NUM_PROCESSES, PROCESS_ID, Coordinates, Member, find_coordinates

JOIN_SECONDS = "EVERSTEP_JOIN_SECONDS"
"""The environment variable with the seconds to wait for all processes at the start."""

DEFAULT_JOIN_SECONDS = 300.0
_REFUSING_SECONDS = 20.0
"""How long a process that found its input bad waits for the others, to tell them."""
_OWN_END_SECONDS = 2.0
_CONNECTED = b"connected"

Connections = dict[int, socket.socket]
"""Of the first process: those to all others, by rank. Of another one: that to the first."""

_has_met = False  # whether this process has been in a roll call
_left_open: Connections = {}
"""Connections of the first process that end with it: the others wait for that, so that it has printed the reason."""


def join_seconds(environment: Mapping[str, str]) -> float:
    """Returns how long to wait for all processes.

    Raises:
      UsageError: The variable is no number of seconds.
    """
    text = environment.get(JOIN_SECONDS) or str(DEFAULT_JOIN_SECONDS)
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise UsageError("expected a number of seconds", key=JOIN_SECONDS, received=text)
    return seconds


def meet(coordinates: Coordinates, seconds: float) -> tuple[list[Member], Connections]:
    """Waits until all processes have told the first one who they are; returns them by rank, and the connections.

    Raises:
      UsageError: On every process that came, with the same reason; the first one is to print it.
    """
    global _has_met
    answer, connections = (_say_hello if coordinates.rank else _collect)(coordinates, seconds)
    _has_met = True
    if "members" in answer:
        return [Member(*fields) for fields in answer["members"]], connections
    if answer["is_own"]:  # of a process, not of their meeting
        error = UsageError(answer["error"])
    else:
        error = UsageError(answer["error"], key=COORDINATOR, received=coordinates.address, remedy=answer["remedy"])
    if coordinates.rank and connections:
        error.announced = True
        _wait_for_end(connections)
    else:
        _left_open.update(connections)
    raise error


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
    reason = "; ".join(str(error).splitlines())
    if coordinates.rank == 0:
        code = show()
        with contextlib.suppress(UsageError):  # the port is taken: that may be the error
            _collect(coordinates, _REFUSING_SECONDS, reason)
        return code
    _, connections = _say_hello(coordinates, _REFUSING_SECONDS, reason)
    error.announced = bool(connections)
    if connections:
        _wait_for_end(connections)
    return show()


def _wait_for_end(connections: Connections) -> None:
    """Another process: waits until the first one has ended, and has printed why; a launcher may end all at once."""
    with contextlib.suppress(OSError), connections[0] as connection:
        connection.settimeout(_REFUSING_SECONDS)
        connection.recv(1)


def _collect(coordinates: Coordinates, seconds: float, refusal: str = "") -> tuple[dict[str, Any], Connections]:
    """The first process: collects the others, and sends each the same answer.

    If something is wrong it still waits for those who have not come, but not long, so that they know it, too.
    """
    end, size = time.monotonic() + seconds, coordinates.size
    members, connections = {0: coordinates.this_process()}, []
    answer = {"error": refusal, "is_own": True} if refusal else {}
    with contextlib.closing(_listen(coordinates)) as listener:
        while len(members) < size:
            listener.settimeout(max(end - time.monotonic(), 0.01))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                missing = ", ".join(str(rank) for rank in range(size) if rank not in members)
                reason = f"rank {missing} of {size} processes did not come within {seconds:g} s"
                answer = answer or _wrong(reason, f"see its log, or raise {JOIN_SECONDS}")
                break
            try:
                connection.settimeout(10)
                hello = json.loads(connection.makefile("r").readline() or "null")
                member, expected = Member(*hello["member"]), hello["size"]
            except (OSError, ValueError, TypeError, KeyError):  # somebody else knocked at this port
                connection.close()
                continue
            connections.append((member.rank, connection))
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
    for _, connection in connections:
        with contextlib.suppress(OSError):
            connection.sendall(text)
    return answer, dict(connections)


def _wrong(reason: str, remedy: str) -> dict[str, Any]:
    """Returns the answer of a roll call in which the processes do not fit together."""
    return {"error": reason, "remedy": remedy, "is_own": False}


def _listen(coordinates: Coordinates) -> socket.socket:
    _, port = coordinates.host_and_port
    try:
        return socket.create_server(("127.0.0.1" if coordinates.is_local else "", port), backlog=coordinates.size)
    except OSError as error:
        raise UsageError(
            f"rank 0 cannot use this port on {socket.gethostname()}: {os.strerror(error.errno or 0)}",
            key=COORDINATOR,
            received=coordinates.address,
            remedy="choose a port that is free on that machine",
        ) from None


def _say_hello(coordinates: Coordinates, seconds: float, refusal: str = "") -> tuple[dict[str, Any], Connections]:
    """Another process: tells the first one who it is, or why it cannot begin, and waits for its answer."""
    end = time.monotonic() + seconds
    hello = {"member": dataclasses.astuple(coordinates.this_process()), "size": coordinates.size, "error": refusal}
    while time.monotonic() < end:
        try:
            left = max(end - time.monotonic(), 1.0)
            with contextlib.ExitStack() as stack:
                connection = socket.create_connection(coordinates.host_and_port, timeout=min(left, 10))
                stack.enter_context(connection)
                connection.sendall((json.dumps(hello) + "\n").encode())
                connection.settimeout(left + 10)  # the first process, which may have started later, gives up before
                answer = dict(json.loads(connection.makefile("r").readline()))
                stack.pop_all()  # it stays open
                return answer, {0: connection}
        except (OSError, ValueError):  # it does not listen yet, or has just died and may come again
            time.sleep(0.2)
    reason = f"rank 0 did not answer within {seconds:g} s"
    return _wrong(reason, f"see its log, or raise {JOIN_SECONDS}"), {}


# -- afterwards --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def watched(members: Sequence[Member], connections: Connections) -> Iterator[None]:
    """If another process ends while the block connects to the service, this process names it and ends, too."""
    finished = threading.Event()
    watch = threading.Thread(target=_watch, args=(members, connections, finished), name="everstep-gang-lines")
    watch.daemon = True
    watch.start()
    try:
        yield
        for connection in connections.values():
            with contextlib.suppress(OSError):
                connection.sendall(_CONNECTED)
    finally:
        finished.set()
        watch.join()
        for connection in connections.values():
            connection.close()


def _watch(members: Sequence[Member], connections: Connections, finished: threading.Event) -> None:
    """Reads what the others send: that they are connected, or which process they miss."""
    lost = None
    with selectors.DefaultSelector() as selector:
        for rank, connection in connections.items():
            selector.register(connection, selectors.EVENT_READ, rank)
        while lost is None and selector.get_map() and not finished.is_set():
            for key, _ in selector.select(0.05):
                text = b""  # as of a connection that its process has closed by ending
                with contextlib.suppress(OSError):
                    text = connections[key.data].recv(100)
                if text == _CONNECTED:
                    selector.unregister(key.fileobj)
                else:
                    lost = int(text) if text.isdigit() else key.data
    if lost is None or finished.wait(_OWN_END_SECONDS):  # this one may be failing for the same reason, and say so
        return
    for connection in connections.values():
        with contextlib.suppress(OSError):
            connection.sendall(str(lost).encode())
    print(f"everstep: {members[lost]} ended while the processes were connecting", file=sys.stderr, flush=True)
    os._exit(1)
