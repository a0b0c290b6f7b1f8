"""One machine at a time trains a run: a small object in the store names the process, which renews it.

Stores have no locks that end with a process, so this is a best effort. A second machine watches the lease: if it is
renewed, the second machine gives up, and if not, it takes over. Clocks are not compared, as they differ. Only a process
of the same machine, boot and container is looked up by its number. A process that has lost its lease stops uploading:
the lease is checked before each object, and in the store itself before an object that completes others.
"""

import contextlib
import json
import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from everstep.checkpoint import manifest
from everstep.checkpoint.remote import layout
from everstep.checkpoint.remote.layout import OWN
from everstep.checkpoint.remote.store import INCOMING, Absent, Fingerprint, Store, StoreError
from everstep.errors import UsageError
from everstep.liveness import SignsOfLife, is_gone, is_this_process, process_identity, was_recent

logger = logging.getLogger(__name__)

LEASE = f"{OWN}/lease.json"
_RENEWALS_MISSED, _RENEWALS_TRUSTED = 3, 2
_SECONDS_TO_RELEASE = 5.0
_CLOCKS_DIFFER = 60.0

_held_here: set[str] = set()
"""The tokens of leases that this process holds."""

_changing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""A lock by the store's URL: a late release, when the store answers again, must not remove the next lease."""


class LostLease(StoreError):
    """Another process trains the run now."""


class Lease:
    """The right to write to a store, as long as it is renewed.

    Args:
      store: The store of the run.
      interval: Seconds between two renewals.
    """

    def __init__(self, store: Store, interval: float) -> None:
        self._store, self._interval = store, interval
        self._token = uuid.uuid4().hex
        self._renewed = 0.0
        self._lost: LostLease | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()
        self._keeper: threading.Thread | None = None

    def acquire(self) -> None:
        """Takes the lease; if another process holds it, waits until it is clear whether that process is alive.

        Raises:
          UsageError: Another process trains the run; names the host and the process.
          StoreError: The store does not answer, or cannot be written to.
        """
        began = time.monotonic()
        if self._holder() is not None or not self._store.create(LEASE, self._text()):
            began = self._take_over()
        self._renewed = began
        _held_here.add(self._token)

    def keep(self) -> None:
        """Renews the lease in a thread until it is released: an upload may take longer than an interval."""
        self._keeper = threading.Thread(target=self._keep, name="everstep-lease-keeper", daemon=True)
        self._keeper.start()

    def _keep(self) -> None:
        while not self._ended.wait(self._interval / 2):
            try:
                self.renew()
            except LostLease:  # the uploader finds out as well
                return
            except StoreError as error:
                logger.debug("the lease is not renewed (still retrying): %s", error)

    def renew(self) -> None:
        """Renews the lease if it is due.

        Raises:
          LostLease: Another process has taken over.
          StoreError: The store does not answer.
        """
        with self._lock:
            if time.monotonic() - self._renewed < self._interval or self._ended.is_set():
                return
            began = time.monotonic()
            self._require_held()
            self._store.put_bytes(LEASE, self._text())
            self._renewed = began

    def check(self) -> None:
        """Checks that this process holds the lease; asks the store only if renewals were missed.

        Raises:
          LostLease: Another process has taken over.
          StoreError: Renewals were missed, and the store does not answer.
        """
        if self._lost is not None:
            raise self._lost
        if self._ended.is_set():
            raise LostLease(f"the lease of {self._store.url} was released", permanent=True)
        if time.monotonic() - self._renewed >= _RENEWALS_TRUSTED * self._interval:  # others wait longer than that
            self.renew()

    def confirm(self) -> None:
        """Checks in the store that this process holds the lease.

        Raises:
          LostLease: Another process has taken over.
          StoreError: The store does not answer.
        """
        with self._lock:
            self._require_held()

    def _require_held(self) -> None:
        holder = self._holder()
        if holder is None:
            reason = f"the lease of {self._store.url} is gone: another process has trained there, or removed it"
            self._lost = LostLease(reason, permanent=True)
        elif holder.get("token") != self._token:
            reason = f"{self._store.url} is now being trained by {_describe(holder)}"
            self._lost = LostLease(reason, permanent=True)
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Releases the lease if this process holds it; waits only briefly for a store that does not answer."""
        self._ended.set()
        _held_here.discard(self._token)
        thread = threading.Thread(target=self._release, name="everstep-lease", daemon=True)
        thread.start()
        thread.join(_SECONDS_TO_RELEASE)
        if self._keeper is not None:
            self._keeper.join(_SECONDS_TO_RELEASE)

    def _release(self) -> None:
        with contextlib.suppress(StoreError), self._lock, _changing[self._store.url]:
            if (self._holder() or {}).get("token") == self._token:
                self._store.delete([LEASE])

    def holder(self) -> str:
        """Returns a description of the process that holds the lease."""
        with contextlib.suppress(StoreError):
            if found := self._holder():
                return _describe(found)
        return "another process of this machine"

    def _take_over(self) -> float:
        """Takes the lease from a holder that is gone; returns when, on the monotonic clock."""
        holder = self._holder()
        if holder is not None and not _is_abandoned(holder):
            self._wait_for(holder)
        began = time.monotonic()
        with _changing[self._store.url]:
            self._store.put_bytes(LEASE, self._text())
        time.sleep(0.2)
        now = self._holder()
        if now is not None and now.get("token") != self._token:
            raise already_training(self._store.url, _describe(now))
        return began

    def _wait_for(self, holder: dict[str, Any]) -> None:
        """Waits until the holder has missed its renewals.

        Raises:
          UsageError: The holder has renewed the lease.
        """
        seconds = _RENEWALS_MISSED * float(holder.get("interval", self._interval))
        logger.warning(
            "%s was held by %s: waiting up to %.0f s to see if it is alive", self._store.url, _describe(holder), seconds
        )
        signs = SignsOfLife({"the holder": holder})
        while not signs.silent(seconds):
            signs.pause(min(1.0, self._interval / 2))
            now = self._holder()
            if now is None:
                return
            if signs.hear("the holder", now):
                raise already_training(self._store.url, _describe(now))

    def _holder(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._store.get_bytes(LEASE))
        except Absent:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _text(self) -> bytes:
        holder = {**process_identity(), "token": self._token}
        return json.dumps({**holder, "time": time.time(), "interval": self._interval}).encode()


def already_training(url: str, holder: str) -> UsageError:
    """Returns the error for a run that another process trains."""
    return UsageError(f"is being trained by {holder}", key=url, remedy="wait for it, or choose another URL")


def is_renewed(directory: Path) -> bool:
    """Returns whether the lease of a fetched run was renewed recently, by this machine's clock."""
    try:
        found = json.loads((directory / LEASE).read_bytes())
        return was_recent(float(found["time"]), _RENEWALS_MISSED * float(found["interval"]) + _CLOCKS_DIFFER)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _describe(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on host {holder.get('host', '?')}"


def _is_abandoned(holder: dict[str, Any]) -> bool:
    """Whether the holder is certainly gone: its process has ended, or is this one, which could not release it."""
    return is_gone(holder) or (is_this_process(holder) and holder.get("token") not in _held_here)


class HeldStore(Store):
    """The store of a run that is trained here: the lease is checked before each object is written.

    An object that completes others (a manifest, the index, the record) is written only after the lease was confirmed in
    the store itself: a machine that was offline, and was replaced, leaves nothing that looks complete.

    Args:
      url: The URL of the run.
      lease: The run's lease.
    """

    def __init__(self, url: str, lease: Lease) -> None:
        super().__init__(url)
        self._lease = lease

    def put(self, name: str, source: Path, known: Fingerprint | None = None) -> Fingerprint:
        """Uploads a file; see `Store.put`."""
        self._check_lease(name)
        return super().put(name, source, known)

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store; see `Store.copy`."""
        self._check_lease(target)
        super().copy(source, target)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; see `Store.delete`."""
        for name in names:
            self._check_lease(name)
            super().delete([name])

    def _check_lease(self, name: str) -> None:
        completing = (f"/{manifest.NAME}", layout.INDEX, *layout.completing_files())
        if not name.startswith(f"{INCOMING}/") and name.endswith(completing):
            self._lease.confirm()
        else:
            self._lease.check()
