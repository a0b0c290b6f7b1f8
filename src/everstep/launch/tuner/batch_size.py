"""Batch sizes, each tried in a process of its own: one that dies of it takes nobody along."""

import dataclasses
import json
import signal
import sys
import textwrap
from collections.abc import Callable, Sequence

from everstep.errors import TrainingError, UsageError
from everstep.launch.tuner.child import Ended, run_child
from everstep.launch.tuner.oom import says_out_of_memory
from everstep.launch.tuner.sizes import Tried

_ERROR = "everstep: error: "
_LAST_LINES = 20


def spelled(tried: Tried) -> str:
    """Returns a try as the line by which a child tells its parent of it."""
    return json.dumps({"tried": dataclasses.asdict(tried)})


def in_child(command: Callable[[int], Sequence[str]], most_bytes: int | None) -> Callable[[int], Tried]:
    """Returns a function that tries a batch size in a process of its own.

    Args:
      command: Returns the command line that tries a size, and prints it `spelled`.
      most_bytes: The memory of the host that a try may take; None for no bound.
    """
    return lambda size: _judged(size, run_child(command(size), most_bytes), most_bytes)


def _judged(size: int, ended: Ended, most_bytes: int | None) -> Tried:
    """Returns how it went.

    Raises:
      UsageError: The request cannot be carried out.
      TrainingError: It failed, and not for want of memory.
    """
    tried = _told(ended.out) if ended.code == 0 else None
    if ended.took_too_much or (tried is not None and most_bytes is not None and tried.host_bytes > most_bytes):
        return Tried(size, False, note=f"took more than {gigabytes(most_bytes or 0)} of memory")
    if ended.code == -signal.SIGKILL:
        return Tried(size, False, note="killed, as the system does when memory runs out")
    if tried is not None:
        return tried
    told = ended.err if ended.code < 0 else _last_line(ended.err)
    if says_out_of_memory(told):
        return Tried(size, False, note=textwrap.shorten(_last_line(ended.err), 80, placeholder=" …"))
    raise _failure(size, ended)


def gigabytes(count: int) -> str:
    """Returns a number of bytes to read: `1.50 GB`."""
    return f"{count / 1e9:.2f} GB"


def _told(out: str) -> Tried | None:
    """Returns what a child has told; the user's code may have printed lines of its own."""
    for line in reversed(out.splitlines()):
        if line.startswith('{"tried": '):
            return Tried(**json.loads(line)["tried"])
    return None


def _failure(size: int, ended: Ended) -> Exception:
    last = _last_line(ended.err)
    if last.startswith(_ERROR):
        kind = UsageError if ended.code == 2 else TrainingError
        return kind(f"batch size {size}: {last.removeprefix(_ERROR)}")
    print("\n".join(ended.err.splitlines()[-_LAST_LINES:]), file=sys.stderr)
    how = f"signal {signal.Signals(-ended.code).name}" if ended.code < 0 else f"exit code {ended.code}"
    return TrainingError(f"batch size {size}: it ended with {how}, not for want of memory; see the lines above")


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")
