"""A command in a process of its own, which may take so much memory and no more; nothing of it outlives the call."""

import contextlib
import dataclasses
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

_PAUSE = 0.05  # seconds between two looks at its memory
_PROCESSES = Path("/proc")


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a process has ended.

    Attributes:
      code: Its exit code; minus the signal that ended it.
      out: What it wrote to standard output.
      err: What it wrote to standard error.
      took_too_much: Whether it was ended because it took more memory than it may.
    """

    code: int
    out: str
    err: str
    took_too_much: bool


def run_child(command: Sequence[str], most_bytes: int | None) -> Ended:
    """Runs a command to its end; it is ended, with all that it started, if they take too much memory together.

    Args:
      command: Program and arguments.
      most_bytes: How much they may take; None for no bound. Where the system does not tell, there is none.
    """
    with tempfile.TemporaryDirectory(prefix="everstep-tune-") as folder, _files(folder) as (out, err):
        child = _started(command, folder, out, err)
        with _ended_afterwards(child):
            _offer_first(child.pid)
            too_much = _watched(child, most_bytes)
        return Ended(child.returncode, _text(out), _text(err), too_much)


def end_with_parent() -> None:
    """Ends this process as soon as the one that started it is gone, which may have been killed: nobody else would."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, name="everstep-parent", daemon=True).start()


def free_bytes() -> int | None:
    """Returns the memory that new processes can have, None where the system does not tell."""
    with contextlib.suppress(OSError):
        for line in (_PROCESSES / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


@contextlib.contextmanager
def _files(folder: str) -> Iterator[tuple[IO[bytes], IO[bytes]]]:
    with open(f"{folder}/out", "w+b") as out, open(f"{folder}/err", "w+b") as err:
        yield out, err


def _started(command: Sequence[str], folder: str, out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
    """Starts it in a session of its own; what it leaves in its temporary directory goes with the folder."""
    environment = os.environ | {"TMPDIR": folder}
    return subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, env=environment
    )


@contextlib.contextmanager
def _ended_afterwards(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Whatever happens inside the block, nothing of the child's session is left after it."""
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _offer_first(pid: int) -> None:
    """Where the system runs out of memory, it ends this process before any other."""
    with contextlib.suppress(OSError):
        (_PROCESSES / str(pid) / "oom_score_adj").write_text("1000")


def _watched(child: subprocess.Popen[bytes], most_bytes: int | None) -> bool:
    """Waits for the end of the child; returns whether it has taken more memory than it may, and does not wait then."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_PAUSE)
            return False
        if most_bytes is not None and _resident_bytes(child.pid) > most_bytes:
            return True


def _resident_bytes(session: int) -> int:
    """Returns the memory that all processes of a session have."""
    return sum(_resident_pages(path, session) for path in _PROCESSES.glob("[0-9]*/stat")) * os.sysconf("SC_PAGE_SIZE")


def _resident_pages(path: Path, session: int) -> int:
    with contextlib.suppress(OSError, ValueError):  # it may have ended meanwhile
        fields = path.read_text().rpartition(")")[2].split()  # the name before may hold anything
        if int(fields[3]) == session:
            return int(fields[21])
    return 0


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")
