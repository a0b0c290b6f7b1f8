"""The checkpoints of several processes that train one run: one commit, by the first process; all of them read it.

What every process has, the first one writes. Arrays that are divided over the processes are written by all, each its
own parts (`parts.py`), in the background:

    first process                                         the others
    begins a checkpoint under a temporary name, says so   wait for that
    writes whole arrays, and its parts                    write their parts beside it, and sync them
    waits for all                                         say which files there are, with their digests
    moves their parts in, writes the manifest, renames    wait for the end
    says that the checkpoint is committed, or why not     know it, as the first process does

A kill at any instant leaves the new checkpoint or none: what has a temporary name is removed by the next save.

Before a checkpoint is restored, each process checks the bytes of some of its files, and together they check all. What
one of them finds damaged is damaged for all, and all try the checkpoint before.
"""

import concurrent.futures
import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from everstep.checkpoint import manifest, parts
from everstep.checkpoint.base import folder_of
from everstep.checkpoint.checkpointer import Checkpointer, SaveError
from everstep.checkpoint.manifest import Base, Damaged
from everstep.checkpoint.orbax import OrbaxCheckpointer, Readers, Replaced, Writers, save_error
from everstep.checkpoint.visible import require_visible
from everstep.gang import Gang
from everstep.types import ArrayParts, OwnState, StoredState


class SharedCheckpointer(Checkpointer):
    """Gives every process the checkpoints of the first one; all make the same calls in the same order.

    Args:
      own: The checkpointer of this process, for the directory that all of them see.
      gang: The processes.
      directory: That directory.
    """

    keeps_base = True

    def __init__(self, own: OrbaxCheckpointer, gang: Gang, directory: Path) -> None:
        self._own, self._gang, self._directory = own, gang, directory
        self._steps = set(gang.share("the checkpoints", own.steps()))  # as the other processes know them
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "everstep-parts")
        self._saves = 0  # of divided arrays
        self._saving: int | None = None  # the step of the last one, until it is awaited
        self._written: concurrent.futures.Future[None] | None = None  # on all but the first process

    def save(
        self,
        step: int,
        state: OwnState,
        meta: dict[str, Any],
        metrics: Mapping[str, Any] | None = None,
        replace: bool = False,
        base: Base | None = None,
    ) -> None:
        """Saves on the first process what all of them have, and on every process its parts of divided arrays."""
        held = {key: array for key, array in state.items() if isinstance(array, ArrayParts)}
        if not held:
            self._steps.add(step)
            if self._gang.is_first:
                self._own.save(step, state, meta, metrics, replace, base)
            return
        self.wait()
        if not self._gang.share("a save", replace or not self._is_saved(step)):
            return
        channel, self._saving = self._next_channel(), step
        if not self._gang.is_first:
            self._written = self._thread.submit(_write_parts, self._directory, self._gang, channel, held)
            return
        writers = _FirstWriter(self._gang, channel)
        try:
            self._own.save(step, state, meta, metrics, replace, base, writers)
        except SaveError as error:  # before anything began
            writers.give_up(error)
            raise

    def _next_channel(self) -> "_Channel":
        """Returns the channel for the next checkpoint of divided arrays."""
        self._saves += 1
        if self._gang.is_first:
            self._gang.forget(_Channel.name(self._saves - 1))  # all have waited for that one
        return _Channel(self._gang, self._saves)

    def has_base(self, base: Base) -> bool:
        """Returns whether the first process sees these frozen weights."""
        return bool(self._gang.share("the frozen weights", self._gang.is_first and self._own.has_base(base)))

    def save_base(self, base: Base, state: OwnState) -> None:
        """Saves frozen weights: as `save`, but all processes wait until they are on disk."""
        self.wait()
        held = {key: array for key, array in state.items() if isinstance(array, ArrayParts)}
        if not held:
            if self._gang.is_first:
                self._own.save_base(base, state)
            return
        channel, folder = self._next_channel(), folder_of(self._directory)
        if self._gang.is_first:
            self._own.save_base(base, state, _FirstWriter(self._gang, channel))
            return
        try:
            _write_parts(folder, self._gang, channel, held)
        except Exception as error:
            raise save_error("the frozen weights", folder, error) from error

    def _is_saved(self, step: int) -> bool:
        with contextlib.suppress(OSError):  # then the save fails, too, and says why
            return step in self.steps()
        return False

    def wait(self) -> None:
        """Waits until the last save is on disk; one that failed has failed on every process."""
        step, self._saving = self._saving, None
        written, self._written = self._written, None
        self._own.wait()
        if step is None:
            return
        try:
            if written is not None:
                written.result()
        except Exception as error:
            raise save_error(f"step {step}", self._directory, error) from error
        self._steps.add(step)

    def restore(self, step: int | None = None) -> tuple[StoredState, dict[str, Any]]:
        """Returns the same checkpoint on every process: the newest one in which no process finds damage.

        Every process reads of arrays in parts only what it needs, when it places them on its devices.
        """
        self.wait()
        return self._own.open(step, readers=_AllReaders(self._gang))

    def newest_meta(self) -> dict[str, Any]:
        """Returns the meta of the newest checkpoint as the first process reads it."""
        found: dict[str, Any] = self._gang.share(
            "the newest checkpoint", self._own.newest_meta() if self._gang.is_first else None
        )
        return found

    def steps(self) -> list[int]:
        """Returns the steps on disk; on the other processes, those that were there or were saved since.

        A step whose divided arrays are being written counts on all of them, since all must decide the same.
        """
        found = set(self._own.steps()) if self._gang.is_first else self._steps
        return sorted(found if self._saving is None else found | {self._saving})

    def raise_if_all_damaged(self) -> None:
        """Refuses, on the first process, to start from scratch if all checkpoints are damaged."""
        if self._gang.is_first:
            self._own.raise_if_all_damaged()

    def close(self) -> None:
        """Waits for the last save, and closes the checkpointer of this process."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()
            self._own.close()


class _AllReaders(Readers):
    """The processes that read one checkpoint, for one of them.

    Args:
      gang: The processes.
    """

    def __init__(self, gang: Gang) -> None:
        self._gang = gang

    def same(self, steps: list[int]) -> list[int]:
        """Returns the steps that the first process sees."""
        return list(self._gang.share("the checkpoints to restore", steps))

    def path(self, path: Path) -> Path:
        """Returns the directory that the first process reads, when this one sees it, too."""
        path = path.with_name(self._gang.share("the checkpoint to restore", path.name))
        require_visible(path, self._gang)
        return path

    def chosen(self, files: manifest.Files) -> set[str]:
        """Returns the files that this process checks: its own parts, and of the rest, which all read, a share."""
        bytes_of = [0] * self._gang.size
        own = set()
        for path in sorted(files, key=lambda path: (parts.writer(path) is None, -files[path][0], path)):
            writer = parts.writer(path)
            rank = bytes_of.index(min(bytes_of)) if writer is None else writer % self._gang.size
            bytes_of[rank] += files[path][0]
            if rank == self._gang.rank:
                own.add(path)
        return own

    @contextlib.contextmanager
    def agreeing(self, what: str) -> Iterator[None]:
        """If the block raises `Damaged` or `Replaced` on any process, it is raised on all."""
        found: dict[str, str] = {}
        try:
            yield
        except (Damaged, Replaced) as error:
            found = {type(error).__name__: str(error)}
        said = self._gang.gather(what, found)
        if any(Replaced.__name__ in one for one in said):
            raise Replaced
        if damages := [one[Damaged.__name__] for one in said if one]:
            raise Damaged(damages[0])


class _Channel:
    """What the processes tell each other while they write one checkpoint, in threads of their own.

    Args:
      gang: The processes.
      number: How many checkpoints of divided arrays they have begun.
    """

    def __init__(self, gang: Gang, number: int) -> None:
        self._gang, self._name = gang, self.name(number)

    @staticmethod
    def name(number: int) -> str:
        """Returns the name of all that is said about a checkpoint."""
        return f"save/{number}"

    def broadcast(self, what: str, error: BaseException | None = None, **content: Any) -> None:
        """Says something once, or that this process has failed."""
        reason = "" if error is None else str(error).strip().partition("\n")[0] or type(error).__name__
        self._gang.broadcast(f"{self._name}/{what}", {**content, "error": reason})

    def receive(self, what: str) -> dict[str, Any]:
        """Waits for what another process says.

        Raises:
          OSError: That process has failed.
        """
        said = dict(self._gang.receive(f"{self._name}/{what}"))
        if said["error"]:
            raise OSError(said["error"])
        return said


class _FirstWriter(Writers):
    """The processes that write one checkpoint, for the first of them.

    Args:
      gang: The processes.
      channel: What they tell each other.
    """

    def __init__(self, gang: Gang, channel: _Channel) -> None:
        self._gang, self._channel = gang, channel
        self._begun = False

    @contextlib.contextmanager
    def announced(self) -> Iterator[None]:
        """Inside the block the checkpoint is written; when it is committed, or has failed, the others get to know."""
        try:
            yield
        except BaseException as error:
            self.give_up(error)
            raise
        self._channel.broadcast("end")

    def give_up(self, error: BaseException) -> None:
        """Tells the others that there will be no checkpoint."""
        if not self._begun:
            self._channel.broadcast("begin", error)
        self._channel.broadcast("end", error)

    def begin(self, temporary: Path) -> None:
        """Lets the others begin to write."""
        self._begun = True
        self._channel.broadcast("begin", name=temporary.name)

    def join(self, temporary: Path) -> dict[str, list[Any]]:
        """Moves the parts of the other processes in, when all are on disk."""
        written = {rank: self._channel.receive(f"parts/{rank}")["files"] for rank in range(1, self._gang.size)}
        (temporary / parts.FOLDER).mkdir(exist_ok=True)
        known: dict[str, list[Any]] = {}
        for rank, files in written.items():
            if files:
                os.rename(_beside(temporary, rank), temporary / parts.FOLDER / str(rank))
                known |= {f"{parts.FOLDER}/{rank}/{path}": fingerprint for path, fingerprint in files.items()}
        return known


def _write_parts(directory: Path, gang: Gang, channel: _Channel, held: Mapping[str, ArrayParts]) -> None:
    """Writes the parts of a process that is not the first; returns when the checkpoint is committed.

    Raises:
      OSError: It is not, because this process or another one has failed.
    """
    temporary = directory / channel.receive("begin")["name"]
    try:
        channel.broadcast(f"parts/{gang.rank}", files=_write(_beside(temporary, gang.rank), held))
    except Exception as error:
        channel.broadcast(f"parts/{gang.rank}", error)
    channel.receive("end")


def _write(folder: Path, held: Mapping[str, ArrayParts]) -> dict[str, list[Any]]:
    """Writes parts to a new folder; returns size and digest of its files, by path. Without any, there is no folder."""
    parts.write(folder, held)
    return manifest.fingerprints(folder)


def _beside(temporary: Path, rank: int) -> Path:
    """Returns where a process writes its parts, until all of them are there; a name that is removed if they die."""
    return temporary.with_name(f"{temporary.name}.{rank}")
