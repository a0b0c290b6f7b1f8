"""The search for the largest batch that fits, with each size tried in its own subprocess.

Sizes are doubled until one does not fit, then tried between the last two. A try that runs out of memory, or that the
system kills for it, ends only its subprocess.
"""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from everstep.errors import TrainingError, UsageError
from everstep.liveness import is_orphaned

KEY = "task.train_data.global_batch_size"
"""The key whose value is searched."""


@dataclasses.dataclass(frozen=True)
class Tried:
    """The result of trying one batch size.

    Attributes:
      size: Samples in a batch.
      fits: Whether there was enough memory.
      samples_per_second: The speed; None if it was not measured.
      peak_bytes: The most memory that was in use, on the device, or without one on the host.
      host_bytes: The most memory that was in use on the host.
      samples: The number of samples in the data, at least; None if it is unknown.
      note: Why it does not fit.
    """

    size: int
    fits: bool
    samples_per_second: float | None = None
    peak_bytes: int | None = None
    host_bytes: int = 0
    samples: int | None = None
    note: str = ""

    def to_line(self) -> str:
        """Returns the line with which a subprocess reports it."""
        return json.dumps({"tried": dataclasses.asdict(self)})

    @classmethod
    def from_output(cls, out: str) -> "Tried | None":
        """Returns what a subprocess reported, among other lines that it printed; None if it reported nothing."""
        for line in reversed(out.splitlines()):
            if line.startswith('{"tried": '):
                return cls(**json.loads(line)["tried"])
        return None


def search(start: int, largest_size: int, attempt: Callable[[int], Tried]) -> Iterator[Tried]:
    """Yields one try after the other; the largest size that fits is found to a sixteenth.

    Args:
      start: The first size to try.
      largest_size: The largest size to try; the number of samples in the data limits it further.
      attempt: Tries one size.
    """
    fits, fails, size = 0, 0, start
    while size:
        tried = attempt(size)
        yield tried
        if tried.fits:
            fits, largest_size = size, min(largest_size, tried.samples or largest_size)
        else:
            fails = size
        if not fits:
            size = fails // 2
        elif not fails:
            size = min(2 * fits, largest_size) if fits < largest_size else 0
        else:
            size = (fits + fails) // 2 if fails - fits > 1 + fits // 16 else 0


def largest(tries: Sequence[Tried]) -> Tried | None:
    """Returns the largest size that fits, None if none does."""
    return max((one for one in tries if one.fits), key=lambda one: one.size, default=None)


def fastest(tries: Sequence[Tried]) -> Tried | None:
    """Returns the size with the most samples per second, None if none fits."""
    return max((one for one in tries if one.fits), key=lambda one: one.samples_per_second or 0.0, default=None)


def gigabytes(count: int) -> str:
    """Returns a number of bytes as text: `1.50 GB`."""
    return f"{count / 1e9:.2f} GB"


# One size in a subprocess

_ERROR = "everstep: error: "
_LAST_LINES = 20


def try_in_subprocess(size: int, command: Sequence[str], max_bytes: int | None) -> Tried:
    """Tries a batch size in a subprocess; returns the result.

    Args:
      size: The batch size.
      command: The command line that tries it, and prints `Tried.to_line()`.
      max_bytes: The memory of the host that it may use; None for no limit.

    Raises:
      UsageError: The request cannot be carried out.
      TrainingError: It failed for another reason than memory.
    """
    ended = run_limited(command, max_bytes)
    tried = Tried.from_output(ended.out) if ended.code == 0 else None
    if ended.over_limit or (tried is not None and max_bytes is not None and tried.host_bytes > max_bytes):
        return Tried(size, False, note=f"took more than {gigabytes(max_bytes or 0)} of memory")
    if ended.code == -signal.SIGKILL:
        return Tried(size, False, note="killed, as the system does when memory runs out")
    if tried is not None:
        return tried
    last = next((line.strip() for line in reversed(ended.err.splitlines()) if line.strip()), "")
    if says_out_of_memory(ended.err if ended.code < 0 else last):
        return Tried(size, False, note=textwrap.shorten(last, 80, placeholder=" …"))
    key = f"batch size {size}"
    if last.startswith(_ERROR):
        kind = UsageError if ended.code == 2 else TrainingError
        raise kind(last.removeprefix(_ERROR), key=key)
    print("\n".join(ended.err.splitlines()[-_LAST_LINES:]), file=sys.stderr)
    how = f"signal {signal.Signals(-ended.code).name}" if ended.code < 0 else f"exit code {ended.code}"
    raise TrainingError(f"ended with {how}, but not for lack of memory", key=key, remedy="see the lines above")


_POLL_SECONDS = 0.05
_PROCESSES = Path("/proc")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
      code: Its exit code; the negative number of the signal that ended it.
      out: What it wrote to standard output.
      err: What it wrote to standard error.
      over_limit: Whether it was ended because it used more memory than allowed.
    """

    code: int
    out: str
    err: str
    over_limit: bool


def run_limited(command: Sequence[str], max_bytes: int | None) -> Ended:
    """Runs a command to its end, and leaves none of its processes behind.

    Args:
      command: Program and arguments.
      max_bytes: Memory that its processes may use together before they are ended; None for no limit. There is none
        either where the system does not report memory.
    """
    with (
        tempfile.TemporaryDirectory(prefix="everstep-tune-") as folder,
        open(f"{folder}/out", "w+b") as out,
        open(f"{folder}/err", "w+b") as err,
    ):
        # The session is how its processes are found; temporary files that it leaves go with the folder.
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
            env=os.environ | {"TMPDIR": folder},
        )
        try:
            with contextlib.suppress(OSError):  # if the system runs out of memory, it kills this process first
                (_PROCESSES / str(child.pid) / "oom_score_adj").write_text("1000")
            over_limit = _wait(child, max_bytes)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
        out.seek(0)
        err.seek(0)
        return Ended(
            child.returncode, out.read().decode(errors="replace"), err.read().decode(errors="replace"), over_limit
        )


def _wait(child: subprocess.Popen[bytes], max_bytes: int | None) -> bool:
    """Waits until the child ends or uses too much memory; returns whether it did the latter."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_POLL_SECONDS)
            return False
        if max_bytes is not None and _resident_bytes(child.pid) > max_bytes:
            return True


def _resident_bytes(session: int) -> int:
    """Returns the memory that all processes of a session use."""
    pages = 0
    for path in _PROCESSES.glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it may have ended meanwhile
            fields = path.read_text().rpartition(")")[2].split()  # the name before may contain anything
            pages += int(fields[21]) if int(fields[3]) == session else 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def free_bytes() -> int | None:
    """Returns the memory that is available for new processes, None where the system does not report it."""
    with contextlib.suppress(OSError):
        for line in (_PROCESSES / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def end_with_parent() -> None:
    """Ends this process when its parent is gone: a killed parent cannot end it."""
    parent = os.getppid()

    def watch() -> None:
        while not is_orphaned(parent):
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="everstep-parent", daemon=True).start()


# Out of memory, in the words of each backend

_OOM_TYPES = ("ResourceExhaustedError", "OutOfMemoryError")
_OOM_WORDS = re.compile(
    r"RESOURCE_EXHAUSTED|out of memory|OOM when allocating|(can't|cannot|failed to|unable to) allocate|bad_alloc", re.I
)


def is_out_of_memory(error: BaseException) -> bool:
    """Returns whether an error, or one that caused it, reports that the device or the host ran out of memory."""
    seen: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in seen:
        if isinstance(cause, MemoryError) or type(cause).__name__ in _OOM_TYPES or says_out_of_memory(str(cause)):
            return True
        seen.add(id(cause))
        cause = cause.__cause__ or cause.__context__
    return False


def says_out_of_memory(text: str) -> bool:
    """Returns whether a message reports that memory ran out."""
    return _OOM_WORDS.search(text) is not None
