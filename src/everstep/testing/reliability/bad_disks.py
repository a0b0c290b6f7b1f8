"""Disks that are full, read-only or forbidden while a checkpoint is written: 20 trials each.

A trial saves, spoils the disk, saves in vain, and heals the disk. The bars: the failed save raises one SaveError that
names step, directory and reason; the older checkpoints load, bit by bit; nothing half-written has a checkpoint's name;
and the same checkpointer saves again as soon as it can.

Disks are real where the system lets an ordinary user have one (a small `tmpfs` in a mount namespace of its own, made by
`unshare`); a limit on the size of files stands in for a full disk everywhere. Cases that cannot be tried are reported.
"""

import contextlib
import dataclasses
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from everstep.checkpoint import OrbaxCheckpointer, SaveError
from everstep.testing.reliability.saver import ARRAYS, Plan, is_whole, state_of

SIZE = 2_000_000
DISK = 16_000_000
KEPT = 2

Spoiled = Callable[[Path, random.Random], contextlib.AbstractContextManager[None]]
"""Makes a directory's disk bad for a while; the kind of badness may depend on chance."""


@contextlib.contextmanager
def full(directory: Path, choice: random.Random) -> Iterator[None]:
    """Fills the disk but for a random rest that is too small."""
    filler = directory.parent / "filler"
    free = shutil.disk_usage(directory).free
    filler.write_bytes(bytes(free - choice.randrange(SIZE * 9 // 10)))
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def limited(directory: Path, choice: random.Random) -> Iterator[None]:
    """Lets no file become larger than a random part of an array."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (choice.randrange(SIZE // ARRAYS * 9 // 10), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextlib.contextmanager
def read_only(directory: Path, choice: random.Random) -> Iterator[None]:
    """Mounts the disk read-only."""
    _remount(directory.parent, "ro")
    try:
        yield
    finally:
        _remount(directory.parent, "rw")


@contextlib.contextmanager
def forbidden(directory: Path, choice: random.Random) -> Iterator[None]:
    """Takes away the permission to write, or to read as well, or to enter the directory above."""
    path, mode = choice.choice([(directory, 0o555), (directory, 0o000), (directory.parent, 0o000)])
    path.chmod(mode)
    try:
        yield
    finally:
        path.chmod(0o755)


@contextlib.contextmanager
def healthy(directory: Path, choice: random.Random) -> Iterator[None]:
    """Leaves the disk as it is, to show that a trial can fail."""
    yield


CASES: dict[str, tuple[Spoiled, str]] = {
    "full": (full, "No space left on device"),
    "limited": (limited, "File too large"),
    "read_only": (read_only, "Read-only file system"),
    "forbidden": (forbidden, "Permission denied"),
}
"""Each case, and what the message must contain."""

NEEDS_A_DISK = ("full", "read_only")


@dataclasses.dataclass(frozen=True)
class Figures:
    """The figures of one case.

    Attributes:
      case: Its name.
      trials: How many saves were to fail.
      wrong: What was not as it must be; one line each.
      skipped: Why it could not be tried; empty if it was.
    """

    case: str
    trials: int
    wrong: list[str]
    skipped: str = ""

    def passed(self) -> bool:
        """Returns whether nothing was wrong."""
        return not self.wrong

    def line(self) -> str:
        """Returns the figures on one line."""
        if self.skipped:
            return f"{self.case:9s} not tried: {self.skipped}"
        return (
            f"{self.case:9s} trials {self.trials} ({CASES[self.case][1]}) | no clear error, lost, half-written or "
            f"stuck: {len(self.wrong)} | {'passed' if self.passed() else 'NOT PASSED'}"
        )


def measure(case: str, folder: Path, trials: int, seed: int = 0) -> Figures:
    """Tries one case in this process, in a folder whose disk may be spoiled."""
    choice, wrong = random.Random(seed), []
    plan = Plan(str(folder / "checkpoints"), SIZE, 0, {"newest": KEPT})
    checkpointer = plan.open()
    save(checkpointer, 1)
    for trial in range(trials):
        wrong += [f"trial {trial}: {text}" for text in _try_once(checkpointer, 2 * trial + 2, case, plan, choice)]
    checkpointer.close()
    return Figures(case, trials, wrong)


def _try_once(
    checkpointer: OrbaxCheckpointer, step: int, case: str, plan: Plan, choice: random.Random
) -> Iterator[str]:
    """Saves a good step, fails to save the next, and checks the directory."""
    directory, (spoiled, reason) = Path(plan.directory), CASES[case]
    save(checkpointer, step)
    before = sorted(path.name for path in directory.iterdir())
    with spoiled(directory, choice):
        yield from _fail(checkpointer, step + 1, directory, reason)
    if (now := sorted(path.name for path in directory.iterdir() if path.name[0] != ".")) != before:
        yield f"there are {now}, there were {before}"
    for kept in checkpointer.steps():
        if not is_whole(kept, SIZE, *checkpointer.restore(kept)):
            yield f"step {kept} is not what was saved"


def _fail(checkpointer: OrbaxCheckpointer, step: int, directory: Path, reason: str) -> Iterator[str]:
    try:
        save(checkpointer, step)
        yield "nothing was raised"
    except SaveError as error:
        parts = (f"step {step} ", repr(str(directory)), reason, "untouched")
        yield from (f"the message does not contain {part}: {error}" for part in parts if part not in str(error))
        if len(text := str(error)) > len(str(directory)) + 150 or "\n" in text:
            yield f"the message is too long: {text}"
    except Exception as error:
        yield f"it raised {type(error).__name__}: {error}"


def save(checkpointer: OrbaxCheckpointer, step: int) -> None:
    """Saves a step, and waits for it."""
    checkpointer.save(step, state_of(step, SIZE), {"step": step})
    checkpointer.wait()


# -- the disks ------------------------------------------------------------------------------------------------------


def measure_apart(case: str, trials: int) -> Figures:
    """Tries one case in a process of its own, with the rights and the disk that the case needs."""
    if reason := impossible(case):
        return Figures(case, 0, [], reason)
    command = [*_surroundings(case), sys.executable, "-m", __spec__.name, case, str(trials)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        return Figures(case, trials, [f"its process ended with {done.returncode}: {done.stderr[-2000:]}"])
    figures = Figures(**json.loads(done.stdout.splitlines()[-1]))
    if done.stderr:
        figures.wrong.append(
            f"beside the errors raised it printed {done.stderr.count(chr(10))} lines: {done.stderr[:200]}"
        )
    return figures


def _surroundings(case: str) -> list[str]:
    """Returns what a command starts with so that it can mount disks, or, being root's, is subject to permissions."""
    if case in NEEDS_A_DISK:
        return ["unshare", "--user", "--map-root-user", "--mount"]
    return ["unshare", "--user"] if case == "forbidden" and os.geteuid() == 0 else []


def impossible(case: str) -> str:
    """Returns why a case cannot be tried here; empty if it can."""
    prefix = _surroundings(case)
    if not prefix:
        return ""
    if shutil.which("unshare") is None:
        return "there is no command `unshare` on this system"
    probe = ["mount", "-t", "tmpfs", "tmpfs", "/mnt"] if case in NEEDS_A_DISK else ["true"]
    done = subprocess.run([*prefix, *probe], capture_output=True, text=True)
    return f"`{' '.join(prefix)}` is not allowed: {done.stderr.strip()}" if done.returncode else ""


def _measure_here(case: str, trials: int) -> None:
    """Tries one case in surroundings that are right for it, and prints its figures for `measure_apart`."""
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        if case in NEEDS_A_DISK:
            stack.enter_context(_mounted(folder))
        if case == "forbidden":  # the directory above the checkpoints is closed as well
            folder = folder / "run"
            folder.mkdir()
        figures = measure(case, folder, trials)
    print(json.dumps(dataclasses.asdict(figures)))


@contextlib.contextmanager
def _mounted(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _remount(folder: Path, how: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{how}", str(folder)], check=True)


if __name__ == "__main__":
    _measure_here(sys.argv[1], int(sys.argv[2]))
