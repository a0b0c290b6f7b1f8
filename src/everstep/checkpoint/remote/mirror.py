"""From this machine to the store, in an order that leaves the store usable whenever it stops.

Files first, then checkpoints with their manifests last, then the record of the run, then removals with manifests
first. A checkpoint is linked into a folder of its own while it is uploaded: retention may remove it here meanwhile.
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
from everstep.checkpoint.remote import layout, urls
from everstep.checkpoint.remote.cache import Contents, Copy, fetch_files, fetch_newest, fetch_others, fetch_unit
from everstep.checkpoint.remote.layout import CHECKPOINTS, RECORD, Index, Tree, Unit, scan
from everstep.checkpoint.remote.lease import Lease, LostLease
from everstep.checkpoint.remote.store import INCOMING, Fingerprint, Store, StoreError, brief, fingerprint

logger = logging.getLogger(__name__)

Staged = tuple[Path, tuple[int, ...]]
"""A copy of a file, and what the file looked like before it was copied."""


class Mirror:
    """A run in a store, and its working copy on this machine.

    Example:
      mirror = Mirror(store, Copy(store.url))
      mirror.fetch()
      ...                # a run in mirror.directory
      mirror.commit()    # from another thread, again and again

    Only one thread at a time may call it.

    Attributes:
      directory: The run directory on this machine.
      was_empty: Whether the store had nothing of a run when it was fetched.
      progressed: When the store last received something new, on the monotonic clock.
    """

    def __init__(self, store: Store, copy: Copy) -> None:
        self.store, self.directory = store, copy.directory
        self.was_empty = True
        self._copy = copy
        self._index = Index()
        self._committed: dict[str, Unit] = {}  # what the store has, as far as known
        self._sent: dict[str, tuple[int, ...]] = {}  # the signature of each file when it was uploaded
        self._awaited: list[Unit] = []  # what the store has and this machine has yet to fetch
        self._leftovers: list[str] = []
        self._parts: set[tuple[str, str]] = set()  # what the store has of a unit that is being uploaded
        self._bad: set[str] = set()  # units that are damaged on this machine
        self.progressed = time.monotonic()

    # -- down --------------------------------------------------------------------------------------------------------

    def fetch(self) -> None:
        """Updates the working copy to what the store has, unless it is ahead of it.

        It is ahead if no other copy has written to the store since. Otherwise the store wins: the local copy is moved
        aside, with a warning.

        Raises:
          TrainingError: What the store has cannot be used.
          StoreError: The store does not answer.
        """
        contents = Contents(self.store)
        self.was_empty = contents.is_empty
        self._index = contents.index or Index()
        if self.directory.exists() and not self._is_ahead(contents):
            self._copy.set_aside(self._why(contents))
        if not self.directory.exists() and not contents.is_empty:
            self._fetch_all(contents)
        self._committed = dict(contents.units)  # less those that turned out to be damaged
        self._leftovers = layout.leftovers(contents.names, contents.units, self._index.files)
        self._leftovers += [name for name in contents.names if name.startswith(f"{INCOMING}/")]
        self._index.writer = self._copy.id

    def _is_ahead(self, contents: Contents) -> bool:
        here, there = scan(self.directory).newest, max((unit.step for unit in contents.checkpoints), default=-1)
        written = contents.index is not None and contents.index.writer == self._copy.id and here >= there
        return written or (contents.is_empty and contents.index is None and not self._was_uploaded)

    @property
    def _was_uploaded(self) -> bool:
        return self._mark.exists()

    @property
    def _mark(self) -> Path:
        """Marks that the store had something of this copy: if it is empty then, it was emptied."""
        return self.directory / ".uploaded"

    def _why(self, contents: Contents) -> str:
        if contents.is_empty:
            return f"{self.store.url} was emptied since this machine trained there, so the run starts from scratch"
        return f"{self.store.url} was written to elsewhere since this machine trained there"

    def _fetch_all(self, contents: Contents) -> None:
        """Assembles a run directory under another name; it gets its own when it is complete."""
        making = self._copy.staging / "fetched"
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir()
        fetch_files(contents, making)
        fetch_others(contents, making, self._copy.staging)
        self._awaited = fetch_newest(contents, making, self._copy.staging)
        (making / self._mark.name).touch()
        making.rename(self.directory)

    def fetch_awaited(self) -> bool:
        """Fetches one of the older checkpoints, so that retention counts it; returns whether there was one."""
        if not self._awaited:
            return False
        if not fetch_unit(self.store, self._awaited[0], self.directory, self._copy.staging):
            self._committed.pop(self._awaited[0].path, None)
        del self._awaited[0]
        return True

    # -- up ----------------------------------------------------------------------------------------------------------

    def has_news(self) -> bool:
        """Returns whether there is a checkpoint here that the store does not have."""
        with contextlib.suppress(OSError):
            names = [entry.name for entry in (self.directory / CHECKPOINTS).iterdir() if entry.name.isdecimal()]
            return any(f"{CHECKPOINTS}/{name}" not in self._committed for name in names)
        return False

    def commit(self) -> None:
        """Uploads everything that is new here.

        Raises:
          StoreError: The store does not accept it; what it has is as usable as before.
        """
        # Copied before the directory is scanned: it must not refer to checkpoints that are not found there.
        late = self._stage(name for name in (RECORD, *layout.progress_files(self.directory)) if self._is_late(name))
        tree = scan(self.directory)
        if not tree.units and RECORD not in tree.files:
            return  # nothing of a run yet, or a run that was abandoned
        self._commit_files(tree)
        for unit in _newest_first(tree):
            if not self._has(unit):
                self._commit_newer(tree)
                self._commit_unit(unit)
        self._upload(late)
        self._remove(tree)

    def _commit_files(self, tree: Tree) -> None:
        """Uploads what a checkpoint may refer to, and so has to be there before it."""
        self._upload(self._stage(name for name in tree.files if not self._is_late(name)))
        for unit in tree.units.values():
            if unit.parent != CHECKPOINTS:
                self._commit_unit(unit)

    def _commit_newer(self, tree: Tree) -> None:
        """Uploads a checkpoint that was saved while others were being uploaded: a lost machine then loses less.

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

    def _is_late(self, name: str) -> bool:
        """Whether a file says how far the rest is, and so has to follow it; the record does from its second time on."""
        return layout.is_progress_file(name) or (name == RECORD and name in self._index.files)

    def _stage(self, names: Iterable[str]) -> dict[str, Staged]:
        """Copies the files that have changed: they may change again while they are uploaded."""
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
            self._mark.touch()

    def _commit_unit(self, unit: Unit) -> None:
        if self._has(unit) or unit.identity in self._bad:
            return
        linked = self._copy.staging / "unit"
        if not self._link(unit, linked):
            return  # removed meanwhile: a newer one is here
        if unit.path in self._committed:
            self._make_room(self._committed[unit.path])
        missing = [name for name in unit.files if (unit.identity, name) not in self._parts]
        self.store.each(lambda name: self._put_part(unit, name, linked / name), missing)
        if unit.identity in self._bad:
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
            self._bad.add(unit.identity)
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
                _link_or_copy(self.directory / unit.path / name, target / name)
        except FileNotFoundError:
            return False
        return True

    def _make_room(self, former: Unit) -> None:
        """Keeps a unit of the same name under another one, until the new one is complete."""
        kept = dataclasses.replace(former, path=f"{former.path}.replaced")
        for name, target in zip(former.names, kept.names, strict=True):
            self.store.copy(name, target)
        self._committed[kept.path] = kept
        self._delete_unit(former)
        self._committed.pop(former.path, None)

    # -- removals ----------------------------------------------------------------------------------------------------

    def _remove(self, tree: Tree) -> None:
        """Removes from the store what was removed here, once the store has everything that is here."""
        gone = [name for name in {**self._index.files, **self._index.pending} if name not in tree.files]
        if gone and RECORD in tree.files:
            for name in gone:
                self._index.files.pop(name, None)
                self._index.pending.pop(name, None)
            self._write_index()
            self.store.delete(gone)
        awaited = {unit.path for unit in self._awaited}
        for path, unit in list(self._committed.items()):
            here = [other for other in tree.units.values() if other.parent == unit.parent]
            kept = path in tree.units or path in tree.damaged or path in awaited or not here
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
        """Removes from the store all that was uploaded of a run that never started."""
        for unit in self._committed.values():
            self._delete_unit(unit)
        self.store.delete([*self._index.files, *self._index.pending, f"{layout.OWN}/index.json"])


def _newest_first(tree: Tree) -> list[Unit]:
    """Returns the checkpoints, the newest first."""
    return sorted((unit for unit in tree.units.values() if unit.parent == CHECKPOINTS), key=lambda unit: -unit.step)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # a file system without links
        shutil.copyfile(source, target)


_LOOK_SECONDS = 0.5
_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class Uploader:
    """A thread that uploads checkpoints as soon as they are complete and logs now and then, without delaying a step.

    A store that does not answer is logged once, and retried until the run ends; then again, for a while.

    Args:
      mirror: The run and its store.
      lease: The lease that is renewed meanwhile.

    Attributes:
      error: Why not all is in the store; None if all is.
    """

    def __init__(self, mirror: Mirror, lease: Lease) -> None:
        self._mirror, self._lease = mirror, lease
        self._interval, self._patience = urls.upload_interval(), urls.upload_patience()
        self._closing = threading.Event()
        self._closed_at = 0.0
        self._committed = time.monotonic()
        self._warned = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name="everstep-upload", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self, seconds: float | None = None) -> Exception | None:
        """Uploads the rest; returns why that did not succeed, None if it did.

        Args:
          seconds: How long it may take; None: as long as it makes progress.
        """
        self._closed_at = time.monotonic()
        self._closing.set()
        self._thread.join(seconds)
        if self._thread.is_alive():
            return self.error or StoreError(f"not done within {seconds:.0f} s")
        return self.error

    def _work(self) -> None:
        pause = _LOOK_SECONDS
        while True:
            closing, began = self._closing.wait(pause), time.monotonic()
            try:
                self._pass(closing)
            except LostLease as error:
                logger.error("%s: this machine uploads nothing more", error)
                self.error = error
                return
            except Exception as error:  # logged; the run does not end because of it
                self._failed(error)
                pause = _LOOK_SECONDS if closing else self._longer(pause, began)
                if closing and self._gives_up():
                    return
                if closing:
                    time.sleep(pause)
            else:
                self._recovered()
                pause = _LOOK_SECONDS
                if closing:
                    return

    def _pass(self, closing: bool) -> None:
        self._lease.renew()
        due = time.monotonic() - self._committed >= self._interval
        if closing or due or self._mirror.has_news():
            self._mirror.commit()
            self._committed = time.monotonic()
        if not closing and self._mirror.directory.exists():
            self._mirror.fetch_awaited()

    def _longer(self, pause: float, began: float) -> float:
        """Returns how long to wait after a failed pass: longer each time, unless the store accepted some of it."""
        if self._mirror.progressed >= began:
            return _FIRST_PAUSE
        return min(max(_FIRST_PAUSE, pause * 2), _LONGEST_PAUSE)

    def _gives_up(self) -> bool:
        return time.monotonic() - max(self._closed_at, self._mirror.progressed) >= self._patience

    def _failed(self, error: Exception) -> None:
        self.error = error
        if not self._warned:
            logger.warning("training continues, its results wait on this machine (still retrying): %s", brief(error))
        self._warned = True

    def _recovered(self) -> None:
        if self._warned:
            logger.warning("%s has all results again", self._mirror.store.url)
        self._warned, self.error = False, None
