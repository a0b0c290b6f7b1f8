"""What several processes do together around one run: meet in its directory, and agree on what they are about to do.

The first process writes and prints for all of them. The others work in a directory of their own, which is removed at
the end, so that nothing that writes needs to know about them.
"""

import contextlib
import dataclasses
import difflib
import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from everstep import storage
from everstep.checkpoint import require_visible
from everstep.errors import UsageError
from everstep.gang import Gang, barrier, different_values, require_same
from everstep.run import resume_checks

FOLDER = "processes"
"""The folder of a run, in its directory, with a log of each process but the first."""

MEMBERS = "members.json"
"""The file in it that names the processes of the last attempt: rank, host and pid."""


@contextlib.contextmanager
def own_directory(gang: Gang, shared: Path) -> Iterator[Path]:
    """Yields the directory in which this process writes: the run's, or, for all but the first, a temporary one."""
    if gang.is_first:
        yield shared
        return
    with tempfile.TemporaryDirectory(prefix=f"everstep-rank-{gang.rank}-") as folder:
        yield Path(folder)


def meet(gang: Gang, run: Any, shared: Path, mode: Any, trains: bool) -> None:
    """Waits until the first process holds the run, and all others see its directory; does nothing for one process.

    Raises:
      UsageError: A process does not see the directory, or the mode is one for a single process.
    """
    if gang.size == 1:
        return
    if not mode.trains and mode.value == "continuous_eval":
        reason = f"waits for checkpoints, which {gang.size} processes cannot do together"
        raise UsageError(reason, key="--mode", received=mode.value, remedy="start it as one process")
    run.record["id"] = gang.share("the run", run.id)
    if not trains:
        return
    path = shared / FOLDER / MEMBERS
    token = uuid.uuid4().hex
    if gang.is_first:
        storage.prepare_directory(shared / FOLDER, "model_dir")
        members = [dataclasses.asdict(member) for member in gang.members]
        storage.write_json(path, {"token": token, "members": members})
    token = gang.share("the directory", token)
    require_visible(path, gang, lambda: token in path.read_text("utf-8"))
    barrier(gang, "the directory is seen")


def agree_on_program(gang: Gang, config: str, run: Any) -> None:
    """Requires that all processes have the same configuration, packages and code.

    Raises:
      UsageError: They differ; it names what and where.
    """
    if gang.size == 1:
        return
    if texts := different_values(gang, "the configuration", config):
        other = next(rank for rank, text in enumerate(texts) if text != texts[0])
        raise UsageError(
            f"the configuration differs between the processes: {_difference(texts[0], texts[other])}, "
            f"on rank 0 and {gang.members[other]}",
            remedy="start every process with the same command",
        )
    require_same(gang, "the packages", resume_checks.packages(), remedy="install the same versions everywhere")
    require_same(gang, "the code", run.code(), remedy="start every process from the same code")


def agree_on_data(gang: Gang, trainer: Any) -> None:
    """Requires that all processes have the same data.

    Raises:
      UsageError: It differs; the key is that of the section.
    """
    if gang.size == 1:
        return
    for kind, found in resume_checks.data_fingerprints(trainer).items():
        key = f"task.{kind}_data"
        require_same(gang, "the data", found, key=key, remedy="every process must read the same data in the same order")


def _difference(one: str, other: str) -> str:
    """Returns the first line that differs, as both have it."""
    lines = difflib.unified_diff(one.splitlines(), other.splitlines(), n=0, lineterm="")
    changed = [line for line in lines if line[:1] in "+-" and line[:3] not in ("+++", "---")]
    removed = next((line[1:].strip() for line in changed if line[0] == "-"), "nothing")
    added = next((line[1:].strip() for line in changed if line[0] == "+"), "nothing")
    return f"{removed!r} and {added!r}"


def log_file(directory: storage.PathLike, rank: int) -> Path:
    """Returns where the output of a process goes that is not the first."""
    return Path(os.fspath(directory), FOLDER, f"{rank}.log")
