"""The gang: the processes that train one run together. They start, stop and restart as one.

Every process runs the same program. What may differ between processes (a clock, a signal, a random number) is agreed
through the gang, so that all of them do the same steps in the same order:

    gang = current_gang()
    length = gang.share("call", my_length)  # what the first process says
    everyone = gang.gather("flag", my_flag)  # what each process says
        …

coordinates.py  where the processes meet, which rank this one is: EVERSTEP_COORDINATOR, _PROCESS_ID, _NUM_PROCESSES,
                or Slurm's; a launcher sets them in `launch/child_gang.py`
roll_call.py    the processes meet: EVERSTEP_JOIN_SECONDS (300); who is missing or cannot begin is named; the port
one.py          `Gang`: what they can say to each other, for a single process
service.py      `ServiceGang`: the same for several, through JAX's coordination service; heartbeats every 2 s, lost
                after 40 s; "the processes do not do the same"
agreements.py   functions over it: a barrier, whether any process says so, whether all have the same; at which step
                all stop: `engine/call_agreement.py`

Bad input ends all processes with exit code 2, and the first one prints the reason: its own, or that of another process,
which tells it in the roll call (`refuse_together`), or afterwards through the service (`failing_together`).
"""

import atexit
import contextlib
import os
from collections.abc import Iterator, Mapping

from everstep.errors import BadDataError, UsageError
from everstep.gang.agreements import barrier, different_values, is_true_of_any, require_same
from everstep.gang.coordinates import COORDINATOR, NUM_PROCESSES, PROCESS_ID, Coordinates, Member, find_coordinates
from everstep.gang.one import Gang
from everstep.gang.roll_call import JOIN_SECONDS, join_seconds, meet, refuse_together, watched
from everstep.gang.service import ServiceGang

__all__ = [
    "COORDINATOR",
    "JOIN_SECONDS",
    "NUM_PROCESSES",
    "PROCESS_ID",
    "Coordinates",
    "Gang",
    "Member",
    "barrier",
    "current_gang",
    "different_values",
    "failing_together",
    "find_coordinates",
    "is_true_of_any",
    "join",
    "refuse_together",
    "require_same",
]

_ALONE = Gang()
_joined: Gang = _ALONE


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
    seconds = join_seconds(environment)
    members, connections = meet(coordinates, seconds)
    with watched(members, connections):
        _joined = gang = ServiceGang(coordinates, members, seconds, spans_devices)
    atexit.register(gang.leave)
    return gang


@contextlib.contextmanager
def failing_together() -> Iterator[None]:
    """If the block fails on this process, all processes of the gang end, with the same exit code.

    A requested stop is no failure: the processes have agreed on it, and wait until the first one has saved.
    """
    try:
        yield
    except SystemExit:
        barrier(current_gang(), "the end")
        raise
    except Exception as error:
        if isinstance(error, UsageError | BadDataError):
            error.announced |= current_gang().fail("; ".join(str(error).splitlines()), exit_code=2)
        else:
            current_gang().fail(f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
        raise
