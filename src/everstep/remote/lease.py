"""One machine at a time: a small object in the store that says who trains, and is renewed while it does.

Stores have no locks that end with a process. So this is a best effort: a second machine waits until it has seen
either that the lease is renewed, and gives up, or that it is not, and takes over. Clocks are not compared, as they
differ; only a process of this very machine, boot and container is looked for by its number. Whoever finds that
somebody else has taken over stops uploading: it is asked for before each object, and of the store itself before one
that makes others count.
"""

import contextlib
import json
import logging
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

from everstep.errors import UsageError
from everstep.remote import process
from everstep.remote.failures import Absent, StoreError
from everstep.remote.layout import OWN
from everstep.remote.transfer import Store

logger = logging.getLogger(__name__)

NAME = f"{OWN}/lease.json"
_RENEWALS_MISSED, _RENEWALS_TRUSTED = 3, 2
_SECONDS_TO_RELEASE = 5.0
_CLOCKS_DIFFER = 60.0

_held_here: set[str] = set()
"""The tokens of leases that this process holds."""

_changing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
"""By the store's URL: one that is given back late, when the store answers again, must not take the next one along."""


class LostLease(StoreError):
    """Somebody else trains the run by now."""


class Lease:
    """The right to write to a store, as long as it is renewed.

    Args:
      store: The store.
      interval: Seconds between two renewals.
      say: Tells a person that it waits.
    """

    def __init__(self, store: Store, interval: float, say: Callable[[str], None] = logger.warning) -> None:
        self._store, self._interval, self._say = store, interval, say
        self._token = uuid.uuid4().hex
        self._renewed = 0.0
        self._lost: LostLease | None = None
        self._lock, self._ended = threading.Lock(), threading.Event()

    def acquire(self) -> None:
        """Takes it; where somebody has it, waits until it is clear whether that one lives.

        Raises:
          UsageError: Somebody else trains there; names the host and the process.
          StoreError: The store does not answer, or may not be written to.
        """
        began = time.monotonic()
        if self._holder() is not None or not self._store.create(NAME, self._text()):
            began = self._take_over()
        self._renewed = began
        _held_here.add(self._token)

    def keep(self) -> None:
        """Renews it until it is released, in a thread of its own: a large checkpoint takes longer than a renewal."""
        threading.Thread(target=self._keep, name="everstep-lease-keeper", daemon=True).start()

    def _keep(self) -> None:
        while not self._ended.wait(self._interval / 2):
            try:
                self.renew()
            except LostLease:  # whoever uploads will find the same
                return
            except StoreError as error:
                logger.debug("the lease is not renewed (still trying): %s", error)

    def renew(self) -> None:
        """Says that this process lives, if it is time for that.

        Raises:
          LostLease: Somebody else has taken over.
          StoreError: The store does not answer.
        """
        with self._lock:
            if time.monotonic() - self._renewed < self._interval or self._ended.is_set():
                return
            began = time.monotonic()
            self._require()
            self._store.put_bytes(NAME, self._text())
            self._renewed = began

    def check(self) -> None:
        """Makes sure that it still is this process's, as far as that is known without asking the store each time.

        Raises:
          LostLease: Somebody else has taken over.
          StoreError: It is not known, and the store does not answer.
        """
        if self._lost is not None:
            raise self._lost
        if self._ended.is_set():
            raise LostLease(f"the lease of {self._store.url} was given back", permanent=True)
        if time.monotonic() - self._renewed >= _RENEWALS_TRUSTED * self._interval:  # others wait for one more
            self.renew()

    def confirm(self) -> None:
        """Asks the store whether it still is this process's.

        Raises:
          LostLease: Somebody else has taken over.
          StoreError: The store does not answer.
        """
        with self._lock:
            self._require()

    def _require(self) -> None:
        holder = self._holder()
        if holder is None:
            told = f"the lease of {self._store.url} is gone: somebody else has trained there, or removed it"
            self._lost = LostLease(told, permanent=True)
        elif holder.get("token") != self._token:
            told = f"{self._store.url} is being trained by {_words(holder)} by now"
            self._lost = LostLease(told, permanent=True)
        if self._lost is not None:
            raise self._lost

    def release(self) -> None:
        """Gives it back, if it still is this process's; does not wait long for a store that does not answer."""
        self._ended.set()
        _held_here.discard(self._token)
        thread = threading.Thread(target=self._release, name="everstep-lease", daemon=True)
        thread.start()
        thread.join(_SECONDS_TO_RELEASE)

    def _release(self) -> None:
        with contextlib.suppress(StoreError), self._lock, _changing[self._store.url]:
            if (self._holder() or {}).get("token") == self._token:
                self._store.delete([NAME])

    def holder(self) -> str:
        """Returns who has it, in words."""
        with contextlib.suppress(StoreError):
            if found := self._holder():
                return _words(found)
        return "another process of this machine"

    def _take_over(self) -> float:
        """Takes it from one that is gone; returns when, on the monotonic clock."""
        holder = self._holder()
        if holder is not None and not _is_left(holder):
            self._wait_for(holder)
        began = time.monotonic()
        with _changing[self._store.url]:
            self._store.put_bytes(NAME, self._text())
        time.sleep(0.2)
        now = self._holder()
        if now is not None and now.get("token") != self._token:
            raise UsageError(self._refusal(now))
        return began

    def _wait_for(self, holder: dict[str, Any]) -> None:
        """Waits until the holder has missed its renewals.

        Raises:
          UsageError: It has renewed it.
        """
        seconds = _RENEWALS_MISSED * float(holder.get("interval", self._interval))
        self._say(
            f"{self._store.url} was held by {_words(holder)}: waiting up to {seconds:.0f} s whether that one lives"
        )
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(min(1.0, self._interval / 2))
            now = self._holder()
            if now is None:
                return
            if now != holder:
                raise UsageError(self._refusal(now))

    def _refusal(self, holder: dict[str, Any]) -> str:
        return f"{self._store.url} is being trained by {_words(holder)}: wait for it, or name another place"

    def _holder(self) -> dict[str, Any] | None:
        try:
            found = json.loads(self._store.get_bytes(NAME))
        except Absent:
            return None
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _text(self) -> bytes:
        holder = {**process.identity(), "token": self._token}
        return json.dumps({**holder, "time": time.time(), "interval": self._interval}).encode()


def is_renewed(directory: Path) -> bool:
    """Tells of a fetched run whether its lease was renewed lately, as far as this machine's clock can tell."""
    try:
        found = json.loads((directory / NAME).read_bytes())
        silent = time.time() - float(found["time"])
        return silent < _RENEWALS_MISSED * float(found["interval"]) + _CLOCKS_DIFFER
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _words(holder: dict[str, Any]) -> str:
    return f"process {holder.get('pid', '?')} on host {holder.get('host', '?')}"


def _is_left(holder: dict[str, Any]) -> bool:
    """Whether there is no need to wait: its process is gone, or is this one, which could not give it back."""
    return process.is_gone(holder) or (process.is_this(holder) and holder.get("token") not in _held_here)
