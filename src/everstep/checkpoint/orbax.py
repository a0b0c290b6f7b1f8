"""Checkpoints written by Orbax, used directly, in the background.

One directory per step: `state/` holds the large arrays, each under its flat key, `parts/` the small ones and those that
are divided over several processes (see `parts.py`), `meta/` one JSON document, `manifest.json` the digests. All of it
is written under a temporary name and renamed at the very end: a directory whose name is a number is complete. On
reading, every byte is checked, by one of the processes that read it; a damaged checkpoint is set aside and the one
before it is used. Frozen weights are written once, beside the checkpoints (see `base.py`).
"""

import concurrent.futures
import contextlib
import dataclasses
import errno
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from everstep import __version__, storage
from everstep.checkpoint import arrays, complete, manifest, parts
from everstep.checkpoint import base as bases
from everstep.checkpoint.checkpointer import BASE_KEY, Checkpointer, SaveError
from everstep.checkpoint.manifest import Base, Damaged, Manifest
from everstep.checkpoint.retention import Entry, Retention
from everstep.errors import TrainingError, UsageError
from everstep.types import ArrayParts, OwnState, State, StoredState

logger = logging.getLogger(__name__)

_Read = Callable[[Path], tuple[StoredState, dict[str, Any]]]


class Writers:
    """The processes that write one checkpoint: this one alone. `shared.py` has those of several."""

    def announced(self) -> contextlib.AbstractContextManager[None]:
        """Inside the block the checkpoint is written; when it is committed, or has failed, the others get to know."""
        return contextlib.nullcontext()

    def begin(self, temporary: Path) -> None:
        """Lets the others begin to write."""

    def join(self, temporary: Path) -> dict[str, list[Any]]:
        """Waits for what the others have written, and adds it; returns size and digest of these files, by path."""
        return {}


class Readers:
    """The processes that read one checkpoint: this one alone. `shared.py` has those of several."""

    def same(self, steps: list[int]) -> list[int]:
        """Returns the steps on disk as all of them know them."""
        return steps

    def path(self, path: Path) -> Path:
        """Returns the directory that all of them read."""
        return path

    def chosen(self, files: manifest.Files) -> Collection[str]:
        """Returns the files whose bytes this process checks; together they check all."""
        return files

    @contextlib.contextmanager
    def agreeing(self, what: str) -> Iterator[None]:
        """If the block raises `Damaged` or `Replaced` on any of them, it is raised on all."""
        yield


class Replaced(Exception):
    """The run that wrote a checkpoint has replaced it while it was read."""


class OrbaxCheckpointer(Checkpointer):
    """Keeps states in `directory`, one subdirectory per step.

    `save` returns at once and a thread writes the state. One save is written at a time, and its failure is raised by
    the next call. `restore` returns NumPy arrays with the bits, shape and dtype they had. Reading creates nothing.

    Args:
      directory: Usually `<model_dir>/checkpoints`; created by the first save.
      retention: Which steps are kept. Only what this run has written is ever removed.
      run: Id of the run; checkpoints of another run are refused. Readers that may start before the run pass a function
        that returns the id, which is called at each use. Empty if the id is not known.
      repair: Whether damaged checkpoints are set aside; False for readers of a run.
      saved: Called with the step and the state when they are on disk, by the thread that wrote them; without the state
        if that refers to a base.
    """

    keeps_base = True

    def __init__(
        self,
        directory: storage.PathLike,
        retention: Retention | None = None,
        run: str | Callable[[], str] = "",
        repair: bool = True,
        saved: Callable[[int, StoredState | None], None] = lambda step, state: None,
    ) -> None:
        self._directory = Path(directory).absolute()
        self._retention = retention or Retention()
        self._run_id: Callable[[], str] = run if callable(run) else lambda: run
        self._repair, self._saved = repair, saved
        self._prepared = False
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "everstep-checkpoint")
        self._pending: tuple[int, concurrent.futures.Future[None]] | None = None

    @property
    def directory(self) -> Path:
        """The directory of the checkpoints, on this machine."""
        return self._directory

    def save(
        self,
        step: int,
        state: OwnState,
        meta: dict[str, Any],
        metrics: Mapping[str, Any] | None = None,
        replace: bool = False,
        base: Base | None = None,
        writers: Writers | None = None,
    ) -> None:
        """Starts to save in the background; the caller must not change the arrays before `wait` has returned.

        `writers` are the processes that write divided arrays of the state, together; without such, this one alone.
        """
        self.wait()
        try:
            if step in self.steps() and not replace:
                return
        except OSError as error:
            raise save_error(f"step {step}", self._directory, error) from error
        record = Manifest(step, self._run_id(), time.time(), _finite(metrics or {}), {}, __version__, base=base)
        self._pending = step, self._thread.submit(self._write, record, state, meta, writers or Writers())

    def has_base(self, base: Base) -> bool:
        """Returns whether these frozen weights are on disk."""
        return (self._base_path(base) / manifest.NAME).exists()

    def save_base(self, base: Base, state: OwnState, writers: Writers | None = None) -> None:
        """Saves frozen weights; they are on disk when it returns."""
        self.wait()
        record = Manifest(0, self._run_id(), time.time(), {}, {}, __version__, base=base)
        writers = writers or Writers()
        try:
            with writers.announced():
                folder = bases.folder_of(self._directory)
                storage.prepare_directory(folder)
                _remove_temporary(folder)
                with storage.atomic_path(self._base_path(base)) as temporary:
                    writers.begin(temporary)
                    arrays.write(temporary, state, {})
                    manifest.write(temporary, record, writers.join(temporary))
        except Exception as error:  # any error of the disk, the file system or Orbax
            raise save_error("the frozen weights", bases.folder_of(self._directory), error) from error

    def _base_path(self, base: Base) -> Path:
        return bases.folder_of(self._directory) / bases.name_of(base.digest)

    def wait(self) -> None:
        """Waits until the last save is on disk."""
        if self._pending is None:
            return
        (step, future), self._pending = self._pending, None
        try:
            future.result()
        except Exception as error:  # any error of the disk, the file system or Orbax
            raise save_error(f"step {step}", self._directory, error) from error

    def restore(self, step: int | None = None) -> tuple[State, dict[str, Any]]:
        """Returns what was saved under `step`, by default under the newest step that is not damaged."""
        state, meta = self.open(step, arrays.read)
        return {key: np.asarray(array) for key, array in state.items()}, meta

    def open(
        self, step: int | None = None, read: _Read = arrays.open_state, readers: Readers | None = None
    ) -> tuple[StoredState, dict[str, Any]]:
        """Returns the same as `restore`, verified, too; arrays in parts may still have to be read from their files.

        `readers` are the processes that make this call together; without any, this one alone.
        """
        self.wait()
        readers = readers or Readers()
        if step is not None:
            return self._restore_only(self._existing(step, readers.same(self.steps())), read, readers)
        damages = []
        for candidate in readers.same(self._candidates()[::-1]):
            try:
                return self._read(candidate, read, readers)
            except Damaged as damage:
                damages.append(self._report(candidate, damage))
        raise self._no_usable_checkpoint(damages)

    def newest_meta(self) -> dict[str, Any]:
        """Returns the meta of the newest checkpoint that has one; arrays are not read."""
        self.wait()
        for step in reversed(self.steps()):
            with contextlib.suppress(Exception):  # `restore` reports what is wrong with it
                return arrays.read_meta(self._path(step))
        return {}

    def steps(self) -> list[int]:
        """Returns the complete steps on disk now, of any run."""
        return [step for step in self._candidates() if complete.is_complete(self._path(step))]

    def close(self) -> None:
        """Waits for the last save, and raises its failure."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    # -- writing ---------------------------------------------------------------------------------------------------

    def _write(self, record: Manifest, state: OwnState, meta: dict[str, Any], writers: Writers) -> None:
        with writers.announced():
            self._commit(record, state, meta, writers)
        self._saved(record.step, None if record.base is not None else self._as_saved(record.step, state))
        try:
            self._clear_away()
            self._prune(record.step)
        except OSError as error:  # the new checkpoint is saved all the same
            logger.warning("old checkpoints in %s could not be removed: %s", self._directory, error)

    def _as_saved(self, step: int, state: OwnState) -> StoredState:
        """Returns a state that was saved, with all parts of divided arrays, which are read from its checkpoint."""
        whole = {key: array for key, array in state.items() if not isinstance(array, ArrayParts)}
        return whole if len(whole) == len(state) else {**parts.find(self._path(step)), **whole}

    def _commit(self, record: Manifest, state: OwnState, meta: dict[str, Any], writers: Writers) -> None:
        if not self._prepared:
            storage.prepare_directory(self._directory)
            self._prepared = True
        self._clear_away()
        try:
            with storage.atomic_path(self._directory / str(record.step)) as temporary:
                writers.begin(temporary)
                arrays.write(temporary, state, meta)
                manifest.write(temporary, record, writers.join(temporary))
                self._make_room(record.step)
        except BaseException:
            self._clear_away()
            raise

    def _make_room(self, step: int) -> None:
        """Renames an existing checkpoint of the step, which is used until the new one is complete."""
        path = self._directory / str(step)
        if path.exists():
            path.rename(path.with_name(f"{step}{complete.REPLACED}") if self._own(path, step) else self._aside(step))

    def _clear_away(self) -> None:
        """Removes what a killed process or a full disk left of an unfinished save or removal."""
        for entry in self._directory.iterdir():
            successor = entry.with_name(entry.name.removesuffix(complete.REPLACED))
            if storage.is_temporary(entry) or (successor != entry and complete.is_complete(successor)):
                storage.remove_directory(entry)

    def _prune(self, saved: int) -> None:
        """Removes the steps that retention does not keep; checkpoints of other runs are ignored."""
        own = [record for step in self.steps() if (record := self._own(self._path(step), step)) is not None]
        kept = self._retention.kept(Entry(one.step, one.saved, one.metrics, one.size) for one in own)
        removed = [record for record in own if record.step not in kept and record.step != saved]
        for record in removed:
            storage.remove_directory(self._path(record.step))
        for path in bases.unused(bases.folder_of(self._directory), (record.base for record in removed if record.base)):
            storage.remove_directory(path)

    def _own(self, path: Path, step: int) -> Manifest | None:
        try:
            record = manifest.read(path)
        except (Damaged, UsageError, OSError):
            return None
        return record if (record.run, record.step) == (self._run_id(), step) else None

    # -- reading ---------------------------------------------------------------------------------------------------

    def _read(self, step: int, read: _Read, readers: Readers) -> tuple[StoredState, dict[str, Any]]:
        """Returns a checkpoint after checking every byte.

        Raises:
          Damaged: The checkpoint is not as it was written.
          TrainingError: It cannot be read now, for a reason outside the checkpoint; or its frozen weights are damaged.
          UsageError: It was written by another run, or has been removed.
        """
        while True:
            path = readers.path(self._path(step))
            found = _inode(path)
            with contextlib.suppress(Replaced):
                with readers.agreeing(f"checking step {step}"), self._explained(step, path, found):
                    record = bases.verify(path, readers.chosen)
                    self._require_own(record, step)
                with readers.agreeing(f"reading step {step}"), self._explained(step, path, found):
                    state, meta = read(path)
                return state, meta if record.base is None else {**meta, BASE_KEY: dataclasses.asdict(record.base)}

    @contextlib.contextmanager
    def _explained(self, step: int, path: Path, found: int | None) -> Iterator[None]:
        """Raises an error of the block as what it means for the checkpoint, whose directory was `found` before."""
        try:
            yield
        except (UsageError, bases.MissingBase):
            raise
        except Exception as error:  # Orbax raises many kinds, also for too little memory
            now = _inode(self._path(step))
            if now is None:  # the run that wrote it has removed it meanwhile
                raise UsageError(f"the checkpoint {str(path)!r} was removed") from error
            if now != found:
                raise Replaced from error
            if isinstance(error, Damaged) or (isinstance(error, OSError) and error.errno == errno.EIO):
                raise Damaged(_brief(error)) from error
            raise TrainingError(
                f"the checkpoint {str(path)!r} cannot be read: {_brief(error)}",
                remedy="it is left as it is: fix the cause, and try again",
            ) from error

    def _require_own(self, record: Manifest, step: int) -> None:
        path = self._path(step)
        if record.step != step:
            raise Damaged(f"it is of step {record.step}")
        own = self._run_id()
        if own and record.run and record.run != own:
            raise UsageError(
                f"the checkpoint {str(path)!r} was written by another run ({record.run}, this one is {own})",
                remedy=(
                    "move it away",
                    "train in another directory",
                    "start from that run's weights: {init}=THAT_RUN",
                ),
                mentions={"init": "task.init_checkpoint"},
            )

    def _restore_only(self, step: int, read: _Read, readers: Readers) -> tuple[StoredState, dict[str, Any]]:
        try:
            return self._read(step, read, readers)
        except Damaged as damage:
            reason = f"the checkpoint {str(self._path(step))!r} is damaged: {damage}"
            raise TrainingError(reason, remedy="choose another step") from damage

    def _report(self, step: int, damage: Damaged) -> str:
        """Sets a damaged checkpoint aside, logs it, and returns a description for the final error."""
        path, aside = self._path(step), self._aside(step)
        if self._repair:
            path.rename(aside)
        where = f"; it is kept as {aside.name}" if self._repair else ""
        logger.warning("the checkpoint %s is damaged: %s%s; trying the one before", path, damage, where)
        return f"{step} ({damage})"

    def _aside(self, step: int) -> Path:
        names = [f"{step}.damaged", *(f"{step}.damaged-{number}" for number in range(2, 1000))]
        return next(path for name in names if not (path := self._directory / name).exists())

    def _no_usable_checkpoint(self, damages: list[str]) -> Exception:
        kept = sorted(self._directory.glob("*.damaged*")) if self._directory.is_dir() else []
        if not damages and not kept:
            return UsageError(f"{str(self._directory)!r} contains no checkpoints")
        listed = ", ".join(damages) or ", ".join(path.name for path in kept)
        return TrainingError(
            f"{str(self._directory)!r} contains no usable checkpoint: {listed}",
            remedy="restore one from a copy, or remove them to start from scratch",
        )

    def raise_if_all_damaged(self) -> None:
        """Refuses to start from scratch if all checkpoints are damaged."""
        incomplete = [f"{step} (it has no manifest)" for step in self._candidates()]
        if incomplete or (self._directory.is_dir() and any(self._directory.glob("*.damaged*"))):
            raise self._no_usable_checkpoint(incomplete)

    def _candidates(self) -> list[int]:
        return complete.steps_in(self._directory) if self._directory.is_dir() else []

    def _path(self, step: int) -> Path:
        return complete.directory_of(self._directory, step)

    def _existing(self, step: int, steps: list[int]) -> int:
        if step not in steps:
            known = f"it has {', '.join(map(str, steps))}" if steps else "it has none"
            raise UsageError(f"{str(self._directory)!r} contains no checkpoint of step {step}", remedy=known)
        return step


def _remove_temporary(folder: Path) -> None:
    """Removes what a killed process left of an unfinished save."""
    for entry in folder.iterdir():
        if storage.is_temporary(entry):
            storage.remove_directory(entry)


def _inode(path: Path) -> int | None:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def _finite(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Returns the metrics with finite values: only those can rank a checkpoint."""
    numbers = {name: value for name, value in metrics.items() if isinstance(value, int | float | np.number)}
    return {name: float(value) for name, value in numbers.items() if np.isfinite(value)}


def _brief(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0]
    return text if isinstance(error, Damaged) else f"{type(error).__name__}: {text}"


def save_error(what: str, directory: Path, error: Exception) -> SaveError:
    """Returns the error of a save that failed, with the part of the reason that tells something."""
    reason = getattr(error, "strerror", None) or str(error).strip().partition("\n")[0] or type(error).__name__
    known = [text for text in ("No space left on device", "File too large", "Read-only file system") if text in reason]
    reason = known[0] if known else reason[:200]
    return SaveError(
        f"{what} could not be saved in {str(directory)!r}: {reason}; the checkpoints before it are untouched"
    )
