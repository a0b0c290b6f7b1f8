"""One machine at a time: a small object in the store that says who trains, and is renewed meanwhile.

Stores have no locks that end with a process. So this is a best effort: a second machine waits until it has seen that
the lease is renewed, and gives up, or that it is not, and takes over. Clocks are not compared, as they differ; only a
process of this very machine, boot and container is looked up by its number. A process that finds its lease taken over
stops uploading: the lease is checked before each object, and in the store itself before one that completes others.
"""

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from everstep.checkpoint import manifest
from everstep.checkpoint.remote import layout
from everstep.checkpoint.remote.layout import OWN
from everstep.checkpoint.remote.store import INCOMING, Absent, Fingerprint, Store, StoreError
from everstep.errors import UsageError

_PROC = Path("/proc")
_WHERE = ("host", "boot", "namespace")
_START = 19  # of what stands behind the name in `stat`: the kernel's field 22


def process_identity(pid: int | None = None) -> dict[str, Any]:
    """Returns what identifies a process; texts are empty where the system does not provide them.

    A number alone is not enough: it is reused, and each container counts from 1. So it comes with the machine's boot,
    the namespace that counts, and when the process started. If one of them is unknown nothing is concluded.

    Args:
      pid: One of this machine's processes; None: this one.
    """
    number = os.getpid() if pid is None else pid
    return {"host": socket.gethostname(), "pid": number, **_where(), "start": _start(number)}


def is_gone(other: Mapping[str, Any]) -> bool:
    """Returns whether a process has certainly ended; False also if that cannot be known here."""
    here = {"host": socket.gethostname(), **_where()}
    if not other.get("start") or any(not here[key] or other.get(key) != here[key] for key in _WHERE):
        return False
    try:
        return _start(int(other["pid"])) != other["start"]
    except (KeyError, TypeError, ValueError):
        return False


def is_this_process(other: Mapping[str, Any]) -> bool:
    """Returns whether it is certainly this process."""
    me = process_identity()
    return all(me.values()) and all(other.get(key) == value for key, value in me.items())


def _where() -> dict[str, str]:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return {"boot": boot, "namespace": os.readlink(_PROC / "self/ns/pid")}
    except OSError:
        return {"boot": "", "namespace": ""}


def _start(pid: int) -> str:
    """Returns when a process started, in the kernel's ticks; empty if it does not run."""
    try:
        state, *rest = (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return ""
    return "" if state in "ZX" else rest[_START - 1]


logger = logging.getLogger(__name__)

LEASE = f"{OWN}/lease.json"
_RENEWALS_MISSED, _RENEWALS_TRUSTED = 3, 2
_SECONDS_TO_RELEASE = 5.0
_CLOCKS_DIFFER = 60.0

_held_here: set[str] = set()
"""The tokens of leases that this process holds."""

_changing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By the store's URL: a late release, when the store answers again, must not remove the next lease."""


class LostLease(StoreError):
    """Another process trains the run by now."""


class Lease:
    """The right to write to a store, as long as it is renewed.

    Args:
      store: The store.
      interval: Seconds between two renewals.
      say: Called with a line when it waits for another holder.
    """

    def __init__(self, store: Store, interval: float, say: Callable[[str], None] = logger.warning) -> None:
        self._store, self._interval, self._say = store, interval, say
        self._token = uuid.uuid4().hex
        self._renewed = 0.0
        self._lost: LostLease | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()

    def acquire(self) -> None:
        """Takes the lease; if another process holds it, waits until it is clear whether that one is alive.

        Raises:
          UsageError: Another process trains there; names the host and the process.
          StoreError: The store does not answer, or may not be written to.
        """
        began = time.monotonic()
        if self._holder() is not None or not self._store.create(LEASE, self._text()):
            began = self._take_over()
        self._renewed = began
        _held_here.add(self._token)

    def keep(self) -> None:
        """Renews it in a thread until it is released: a large checkpoint takes longer than an interval."""
        threading.Thread(target=self._keep, name="everstep-lease-keeper", daemon=True).start()

    def _keep(self) -> None:
        while not self._ended.wait(self._interval / 2):
            try:
                self.renew()
            except LostLease:  # the uploader will find the same
                return
            except StoreError as error:
                logger.debug("the lease is not renewed (still trying): %s", error)

    def renew(self) -> None:
        """Renews the lease if it is due.

        Raises:
          LostLease: Somebody else has taken over.
          StoreError: The store does not answer.
        """
        with self._lock:
            if time.monotonic() - self._renewed < self._interval or self._ended.is_set():
                return
            began = time.monotonic()
            self._require()
            self._store.put_bytes(LEASE, self._text())
            self._renewed = began

    def check(self) -> None:
        """Checks that this process still holds it, as far as that is known without a request to the store each time.

        Raises:
          LostLease: Somebody else has taken over.
          StoreError: It is not known, and the store does not answer.
        """
        if self._lost is not None:
            raise self._lost
        if self._ended.is_set():
            raise LostLease(f"the lease of {self._store.url} was released", permanent=True)
        if time.monotonic() - self._renewed >= _RENEWALS_TRUSTED * self._interval:  # others wait for one more
            self.renew()

    def confirm(self) -> None:
        """Checks in the store that this process still holds it.

        Raises:
          LostLease: Somebody else has taken over.
          StoreError: The store does not answer.
        """
        with self._lock:
            self._require()

    def _require(self) -> None:
        holder = self._holder()
        if holder is None:
            reason = f"the lease of {self._store.url} is gone: another process has trained there, or removed it"
            self._lost = LostLease(reason, permanent=True)
        elif holder.get("token") != self._token:
            reason = f"{self._store.url} is being trained by {_words(holder)} by now"
            self._lost = LostLease(reason, permanent=True)
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Releases it, if this process still holds it; does not wait long for a store that does not answer."""
        self._ended.set()
        _held_here.discard(self._token)
        thread = threading.Thread(target=self._release, name="everstep-lease", daemon=True)
        thread.start()
        thread.join(_SECONDS_TO_RELEASE)

    def _release(self) -> None:
        with contextlib.suppress(StoreError), self._lock, _changing[self._store.url]:
            if (self._holder() or {}).get("token") == self._token:
                self._store.delete([LEASE])

    def holder(self) -> str:
        """Returns who holds it, in words."""
        with contextlib.suppress(StoreError):
            if found := self._holder():
                return _words(found)
        return "another process of this machine"

    def _take_over(self) -> float:
        """Takes it from a holder that is gone; returns when, on the monotonic clock."""
        holder = self._holder()
        if holder is not None and not _is_abandoned(holder):
            self._wait_for(holder)
        began = time.monotonic()
        with _changing[self._store.url]:
            self._store.put_bytes(LEASE, self._text())
        time.sleep(0.2)
        now = self._holder()
        if now is not None and now.get("token") != self._token:
            raise refused(self._store.url, _words(now))
        return began

    def _wait_for(self, holder: dict[str, Any]) -> None:
        """Waits until the holder has missed its renewals.

        Raises:
          UsageError: It has renewed it.
        """
        seconds = _RENEWALS_MISSED * float(holder.get("interval", self._interval))
        self._say(
            f"{self._store.url} was held by {_words(holder)}: waiting up to {seconds:.0f} s to see if it is alive"
        )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._interval / 2))
            now = self._holder()
            if now is None:
                return
            if now != holder:
                raise refused(self._store.url, _words(now))

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


def refused(url: str, holder: str) -> UsageError:
    """Returns the error for a run that another process trains."""
    return UsageError(f"{url} is being trained by {holder}", remedy="wait for it, or name another place")


def is_renewed(directory: Path) -> bool:
    """Returns whether the lease of a fetched run was renewed recently, by this machine's clock."""
    try:
        found = json.loads((directory / LEASE).read_bytes())
        silent = time.time() - float(found["time"])
        return silent < _RENEWALS_MISSED * float(found["interval"]) + _CLOCKS_DIFFER
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _words(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on host {holder.get('host', '?')}"


def _is_abandoned(holder: dict[str, Any]) -> bool:
    """Whether there is no need to wait: its process is gone, or is this one, which could not release it."""
    return is_gone(holder) or (is_this_process(holder) and holder.get("token") not in _held_here)


class HeldStore(Store):
    """The store of a run that is trained here: before each object is written, the lease has to be held.

    An object that completes others (a manifest, the index, the record) is written only after the lease was confirmed in
    the store itself: a machine that was offline, and was replaced, leaves nothing that looks complete.

    Args:
      url: The place.
      lease: Its lease.
    """

    def __init__(self, url: str, lease: Lease) -> None:
        super().__init__(url)
        self._lease = lease

    def put(self, name: str, source: Path, known: Fingerprint | None = None) -> Fingerprint:
        """Uploads a file; see `Store.put`."""
        self._require(name)
        return super().put(name, source, known)

    def copy(self, source: str, target: str) -> None:
        """Copies an object inside the store; see `Store.copy`."""
        self._require(target)
        super().copy(source, target)

    def delete(self, names: Iterable[str]) -> None:
        """Removes objects; see `Store.delete`."""
        for name in names:
            self._require(name)
            super().delete([name])

    def _require(self, name: str) -> None:
        completing = (f"/{manifest.NAME}", layout.INDEX, *layout.completing_files())
        if not name.startswith(f"{INCOMING}/") and name.endswith(completing):
            self._lease.confirm()
        else:
            self._lease.check()
