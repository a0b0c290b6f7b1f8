"""Uploads a run to the store, in an order that leaves the store usable whenever the upload is interrupted.

Files first, then checkpoints with their manifests last, then the record of the run, then removals with manifests
first. A checkpoint is linked into a folder of its own while it is uploaded: retention may remove it meanwhile.
"""

import contextlib
import dataclasses
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from everstep.checkpoint import manifest
from everstep.checkpoint.complete import CHECKPOINTS, complete_checkpoints
from everstep.checkpoint.remote import layout, urls
from everstep.checkpoint.remote.cache import Contents, Copy, fetch_files, fetch_newest, fetch_others, fetch_unit
from everstep.checkpoint.remote.layout import RECORD, Index, Tree, Unit, scan
from everstep.checkpoint.remote.lease import Lease, LostLease
from everstep.checkpoint.remote.store import INCOMING, Fingerprint, Store, StoreError, brief, fingerprint

logger = logging.getLogger(__name__)

Staged = tuple[Path, tuple[int, ...]]
"""A copy of a file, and the file's signature before it was copied."""


class Mirror:
    """A run in a store, and its working copy on this machine.

    Example:
      mirror = Mirror(store, Copy(store.url))
      mirror.fetch()
      ...                # a run trains in mirror.directory
      mirror.commit()    # called by another thread, again and again

    Only one thread at a time may call it.

    Args:
      store: The store of the run.
      copy: The run's working copy.

    Attributes:
      directory: The run directory on this machine.
      was_empty: Whether the store had nothing of the run when `fetch` was called.
      progressed: When the store last received something new, on the monotonic clock.
    """

    def __init__(self, store: Store, copy: Copy) -> None:
        self.store, self.directory = store, copy.directory
        self.was_empty = True
        self._copy = copy
        self._index = Index()
        self._committed: dict[str, Unit] = {}  # the units in the store, as far as known
        self._sent: dict[str, tuple[int, ...]] = {}  # the signature of each file when it was uploaded
        self._older: list[Unit] = []  # checkpoints in the store that are not fetched yet
        self._leftovers: list[str] = []  # objects in the store of interrupted uploads
        self._parts: set[tuple[str, str]] = set()  # uploaded files of the unit that is being uploaded
        self._damaged: set[str] = set()  # the identities of units that are damaged on this machine
        self.progressed = time.monotonic()

    # -- download ----------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Updates the working copy to what the store has, unless the copy is ahead.

        The copy is ahead if no other copy has written to the store since. Otherwise the store wins: the local copy is
        moved aside, with a warning.

        Raises:
          TrainingError: What the store has cannot be used.
          StoreError: The store does not answer.
        """
        contents = Contents(self.store)
        self.was_empty = contents.is_empty
        self._index = contents.index or Index()
        if self.directory.exists() and not self._is_ahead(contents):
            if contents.is_empty:
                reason = "was emptied since this machine trained there, so the run starts from scratch"
            else:
                reason = "was written to elsewhere since this machine trained there"
            self._copy.set_aside(f"{self.store.url} {reason}")
        if not self.directory.exists() and not contents.is_empty:
            self._fetch_all(contents)
        self._committed = dict(contents.units)  # fetching has removed damaged ones
        self._leftovers = layout.leftovers(contents.names, contents.units, self._index.files)
        self._leftovers += [name for name in contents.names if name.startswith(f"{INCOMING}/")]
        self._index.writer = self._copy.id

    def _is_ahead(self, contents: Contents) -> bool:
        here, there = scan(self.directory).newest, max((unit.step for unit in contents.checkpoints), default=-1)
        wrote_last = contents.index is not None and contents.index.writer == self._copy.id and here >= there
        return wrote_last or (contents.is_empty and contents.index is None and not self._uploaded_mark.exists())

    @property
    def _uploaded_mark(self) -> Path:
        """A file that marks that the store had something of this copy: an empty store was then emptied."""
        return self.directory / ".uploaded"

    def _fetch_all(self, contents: Contents) -> None:
        """Assembles a run directory in the staging folder, and moves it when it is complete."""
        partial = self._copy.staging / "fetched"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        fetch_files(contents, partial)
        fetch_others(contents, partial, self._copy.staging)
        self._older = fetch_newest(contents, partial, self._copy.staging)
        (partial / self._uploaded_mark.name).touch()
        partial.rename(self.directory)

    def fetch_older(self) -> bool:
        """Fetches one of the older checkpoints, so that retention counts it; returns whether there was one."""
        if not self._older:
            return False
        if not fetch_unit(self.store, self._older[0], self.directory, self._copy.staging):
            self._committed.pop(self._older[0].path, None)
        del self._older[0]
        return True

    # -- upload ------------------------------------------------------------------------------------------------------

    def has_new_checkpoint(self) -> bool:
        """Returns whether there is a local checkpoint that the store does not have."""
        found = complete_checkpoints(self.directory / CHECKPOINTS)
        return any(f"{CHECKPOINTS}/{path.name}" not in self._committed for path in found.values())

    def commit(self) -> None:
        """Uploads everything that is new or has changed on this machine.

        Raises:
          StoreError: The store does not accept it; what it has is as usable as before.
        """
        # Copied before the directory is scanned: they must not refer to checkpoints that the scan does not find.
        progress = (RECORD, *layout.progress_files(self.directory))
        last = self._stage(name for name in progress if self._is_uploaded_last(name))
        tree = scan(self.directory)
        if not tree.units and RECORD not in tree.files:
            return  # the run has not started, or was abandoned
        self._commit_files(tree)
        for unit in _newest_first(tree):
            if not self._has(unit):
                self._commit_newer(tree)
                self._commit_unit(unit)
        self._upload(last)
        self._remove(tree)

    def _commit_files(self, tree: Tree) -> None:
        """Uploads what a checkpoint may refer to, which has to be in the store before it."""
        self._upload(self._stage(name for name in tree.files if not self._is_uploaded_last(name)))
        for unit in tree.units.values():
            if unit.parent != CHECKPOINTS:
                self._commit_unit(unit)

    def _commit_newer(self, tree: Tree) -> None:
        """Uploads a checkpoint that was saved while others were being uploaded: if the machine is lost, less is lost.

        Args:
          tree: What is being committed; the new checkpoint is added to it.
        """
        now = scan(self.directory)
        if now.newest > tree.newest:
            self._commit_files(now)
            newest = _newest_first(now)[0]
            self._commit_unit(newest)
            others = {path: unit for path, unit in now.units.items() if unit.parent != CHECKPOINTS}
            tree.units |= {**others, newest.path: newest}
            tree.files, tree.damaged = now.files, tree.damaged | now.damaged

    def _is_uploaded_last(self, name: str) -> bool:
        """Whether a file refers to others, and so follows them; the record does from its second upload on."""
        return layout.is_progress_file(name) or (name == RECORD and name in self._index.files)

    def _stage(self, names: Iterable[str]) -> dict[str, Staged]:
        """Copies the files that have changed: the originals may change again while they are uploaded."""
        staged = {}
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                before = layout.signature(self.directory / name)
                if self._sent.get(name) != before:
                    target = self._copy.staging / "files" / name
                    target.parent.mkdir(parents=True, exist_ok=True)
                    staged[name] = Path(shutil.copyfile(self.directory / name, target)), before
        return staged

    def _upload(self, staged: Mapping[str, Staged]) -> None:
        found = {name: fingerprint(path) for name, (path, _) in staged.items()}
        new = {name: one for name, one in found.items() if self._index.allowed(name) != [one.entry]}
        if new:
            entries = {name: one.entry for name, one in new.items()}
            self._index.expect(entries)
            self._write_index()
            self.store.each(lambda name: self._put_file(name, staged[name][0], new[name]), new)
            self._index.settle(entries)
            self._write_index()
        self._sent |= {name: before for name, (_, before) in staged.items()}

    def _write_index(self) -> None:
        self._index.write(self.store)
        with contextlib.suppress(OSError):
            self._uploaded_mark.touch()

    def _commit_unit(self, unit: Unit) -> None:
        if self._has(unit) or unit.identity in self._damaged:
            return
        linked = self._copy.staging / "unit"
        if not self._link(unit, linked):
            return  # removed meanwhile: there is a newer one
        if unit.path in self._committed:
            self._make_room(self._committed[unit.path])
        missing = [name for name in unit.files if (unit.identity, name) not in self._parts]
        self.store.each(lambda name: self._put_part(unit, name, linked / name), missing)
        if unit.identity in self._damaged:
            return
        self.store.put_whole(f"{unit.path}/{manifest.NAME}", linked / manifest.NAME)
        self._committed[unit.path] = unit
        self._parts = set()
        self._leftovers = [name for name in self._leftovers if name not in unit.names]
        shutil.rmtree(linked, ignore_errors=True)

    def _put_part(self, unit: Unit, name: str, path: Path) -> None:
        found = fingerprint(path)
        if found.entry != unit.files[name]:
            logger.warning("%s is damaged: %s has changed; it is not uploaded", self.directory / unit.path, name)
            self._damaged.add(unit.identity)
            return
        self.store.put(f"{unit.path}/{name}", path, found)
        self.progressed = time.monotonic()
        self._parts.add((unit.identity, name))

    def _put_file(self, name: str, path: Path, found: Fingerprint) -> None:
        self.store.put_whole(name, path, found)
        self.progressed = time.monotonic()

    def _link(self, unit: Unit, target: Path) -> bool:
        shutil.rmtree(target, ignore_errors=True)
        try:
            for name in (*unit.files, manifest.NAME):
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                try:
                    os.link(self.directory / unit.path / name, target / name)
                except FileNotFoundError:
                    raise
                except OSError:  # the file system has no links
                    shutil.copyfile(self.directory / unit.path / name, target / name)
        except FileNotFoundError:
            return False
        return True

    def _make_room(self, former: Unit) -> None:
        """Moves a unit of the same path in the store to another path, until the new one is complete."""
        kept = dataclasses.replace(former, path=f"{former.path}.replaced")
        for name, target in zip(former.names, kept.names, strict=True):
            self.store.copy(name, target)
        self._committed[kept.path] = kept
        self._delete_unit(former)
        self._committed.pop(former.path, None)

    # -- removals ----------------------------------------------------------------------------------------------------

    def _remove(self, tree: Tree) -> None:
        """Removes from the store what was removed locally, once the store has everything else."""
        gone = [name for name in {**self._index.files, **self._index.pending} if name not in tree.files]
        if gone and RECORD in tree.files:
            for name in gone:
                self._index.files.pop(name, None)
                self._index.pending.pop(name, None)
            self._write_index()
            self.store.delete(gone)
        older = {unit.path for unit in self._older}
        for path, unit in list(self._committed.items()):
            here = [other for other in tree.units.values() if other.parent == unit.parent]
            kept = path in tree.units or path in tree.damaged or path in older or not here
            if not kept and all(self._has(other) for other in here):
                self._delete_unit(unit)
                del self._committed[path]
        if self._leftovers and any(self._has(unit) for unit in tree.units.values()):
            self.store.delete(self._leftovers)
            self._leftovers = []

    def _has(self, unit: Unit) -> bool:
        return unit.path in self._committed and self._committed[unit.path].identity == unit.identity

    def _delete_unit(self, unit: Unit) -> None:
        self.store.delete(reversed(unit.names))

    def forget(self) -> None:
        """Removes everything from the store, of a run that ended before its first step."""
        for unit in self._committed.values():
            self._delete_unit(unit)
        self.store.delete([*self._index.files, *self._index.pending, f"{layout.OWN}/index.json"])


def _newest_first(tree: Tree) -> list[Unit]:
    """Returns the checkpoints of a run directory, the newest first."""
    return sorted((unit for unit in tree.units.values() if unit.parent == CHECKPOINTS), key=lambda unit: -unit.step)


_POLL_SECONDS = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class Uploader:
    """A thread that uploads checkpoints as soon as they are complete, and other files at intervals.

    If the store does not answer, that is logged once, and uploads are retried until the run ends and a while longer.

    Args:
      mirror: The run and its store.
      lease: The lease that is renewed meanwhile.

    Attributes:
      error: Why the store does not have everything; None if it has.
    """

    def __init__(self, mirror: Mirror, lease: Lease) -> None:
        self._mirror, self._lease = mirror, lease
        self._interval, self._patience = urls.upload_interval(), urls.upload_patience()
        self._closing = threading.Event()
        self._abandoned = False
        self._closed_at = 0.0
        self._committed = time.monotonic()
        self._warned = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="everstep-upload", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self, seconds: float | None = None) -> Exception | None:
        """Uploads the rest; returns the error if that fails.

        Args:
          seconds: How long to wait; None to wait as long as the upload makes progress. After that time the thread is
            left to end with the process: what it then sees is no longer logged, and it begins no further upload.
        """
        self._closed_at = time.monotonic()
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            self._abandoned = True
            return self.error or StoreError(f"not done within {seconds:.0f} s")
        return self.error

    def _work(self) -> None:
        pause = _POLL_SECONDS
        while True:
            closing, began = self._closing.wait(pause), time.monotonic()
            try:
                self._pass(closing)
            except LostLease as error:
                if not self._abandoned:
                    logger.error("%s: this machine uploads nothing more", error)
                self.error = error
                return
            except Exception as error:  # logged: it must not end the run
                if self._abandoned:
                    return
                self._failed(error)
                pause = _POLL_SECONDS if closing else self._next_pause(pause, began)
                last_progress = max(self._closed_at, self._mirror.progressed)
                if closing and time.monotonic() - last_progress >= self._patience:
                    return
                if closing:
                    time.sleep(pause)
            else:
                self._recovered()
                pause = _POLL_SECONDS
                if closing:
                    return

    def _pass(self, closing: bool) -> None:
        self._lease.renew()
        due = time.monotonic() - self._committed >= self._interval
        if closing or due or self._mirror.has_new_checkpoint():
            self._mirror.commit()
            self._committed = time.monotonic()
        if not closing and self._mirror.directory.exists():
            self._mirror.fetch_older()

    def _next_pause(self, pause: float, began: float) -> float:
        """Returns how long to wait after a failed pass: longer each time, unless the store accepted a part."""
        if self._mirror.progressed >= began:
            return _FIRST_PAUSE
        return min(max(_FIRST_PAUSE, pause * 2), _LONGEST_PAUSE)

    def _failed(self, error: Exception) -> None:
        self.error = error
        if not self._warned:
            logger.warning("training continues, its results wait on this machine (still retrying): %s", brief(error))
        self._warned = True

    def _recovered(self) -> None:
        if self._warned:
            logger.warning("%s has all results again", self._mirror.store.url)
        self._warned, self.error = False, None
