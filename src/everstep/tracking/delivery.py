"""Delivering the records of a spool to a server, in a thread that reads behind the writer.

`Destination` is a server. `DeliveryProgress` keeps in a file how much of the spool the server has. `Delivery` sends the
next records. `Sender` is the thread: it repeats this, waits after failures, and logs when the server is lost or back.
"""

import dataclasses
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import filelock

from everstep import storage
from everstep.errors import UsageError
from everstep.tracking.spool import Record, Spool, SpoolChunk, point_count

logger = logging.getLogger(__name__)


class Forgotten(Exception):
    """The server no longer has what was delivered to it: everything has to be sent again."""


class Destination(Protocol):
    """A server that takes records."""

    def send(self, records: Sequence[Record]) -> None:
        """Delivers records; called again with the same ones when it raises.

        Raises:
          Forgotten: What was delivered before is gone.
          Exception: It is not possible now.
        """


@dataclasses.dataclass
class DeliveryProgress:
    """How far a spool has been delivered.

    Attributes:
      path: The file that keeps it.
      server: Where it was delivered to. On another server nothing has been delivered.
      offset: The position in the spool of the first record that was not delivered.
      remote_id: What the server calls the run.
    """

    path: Path
    server: str
    offset: int = 0
    remote_id: str | None = None

    @classmethod
    def load(cls, path: Path, server: str, spool: Spool) -> "DeliveryProgress":
        """Returns the progress in the file; none if it is about another server or another spool."""
        try:
            stored = storage.read_json(path)
            offset, remote_id = int(stored["offset"]), stored["remote_id"]
        except (UsageError, TypeError, KeyError, ValueError):  # there is none, or it is damaged: nothing depends on it
            return cls(path, server)
        same = stored.get("server") == server and spool.holds(offset)
        return cls(path, server, offset, remote_id) if same else cls(path, server)

    def save(self) -> None:
        """Writes the file."""
        known = {"server": self.server, "offset": self.offset, "remote_id": self.remote_id}
        storage.write_json(self.path, known)

    def restart(self) -> None:
        """Starts again from the beginning."""
        self.offset, self.remote_id = 0, None
        self.save()


class Delivery:
    """Delivers records from a spool to a destination, under the spool's lock."""

    def __init__(self, spool: Spool, progress: DeliveryProgress, destination: Destination) -> None:
        self._spool, self._progress, self._destination = spool, progress, destination
        # Only the kernel's locks end with the process that holds them.
        self._lock = filelock.FileLock(spool.path.with_suffix(".lock"), thread_local=False, fallback_to_soft=False)

    def take_over(self) -> bool:
        """Takes the lock, without waiting for it; returns whether it is ours."""
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            return False
        except OSError as error:
            logger.debug("no locks here (%s): nothing keeps a second sender out", error)
        return True

    def hand_over(self) -> None:
        """Releases the lock."""
        self._lock.release()

    def step(self) -> SpoolChunk | None:
        """Delivers the next records and returns them; None when there are no more."""
        chunk = self._spool.read(self._progress.offset)
        if chunk.end == self._progress.offset:
            return None
        try:
            self._destination.send(chunk.records)
        except Forgotten:
            self._progress.restart()
            return SpoolChunk([], 0, full=True)
        self._progress.offset = chunk.end
        self._progress.save()
        return chunk

    def done(self) -> bool:
        """Returns whether everything has been delivered."""
        return self._spool.read(self._progress.offset).end == self._progress.offset

    def waiting(self) -> int:
        """Returns how many points have not been delivered."""
        return point_count(self._spool.records(self._progress.offset))


@dataclasses.dataclass(frozen=True)
class SendDelays:
    """How many seconds the sender waits between requests.

    Attributes:
      after_success: The wait after a success, in which new records collect; a backlog is sent without it.
      after_failure: The wait after the first failure. It doubles with each further failure.
      longest: The longest wait after a failure, at which the doubling ends.
    """

    after_success: float = 1.0
    after_failure: float = 1.0
    longest: float = 60.0


class Sender:
    """A daemon thread that keeps delivering.

    It logs a warning when the server is lost, once, and when it is back.

    Args:
      delivery: Sends the next records; called again and again.
      label: The name of the server in the log.
      delays: How long to wait between requests.
    """

    def __init__(self, delivery: Delivery, label: str, delays: SendDelays) -> None:
        self._delivery, self._label, self._delays = delivery, label, delays
        self._news, self._closing = threading.Event(), threading.Event()
        self._failures = 0
        self._lost_at: float | None = None
        self._sent_since = 0
        self._silent = False
        self._thread = threading.Thread(target=self._work, name="everstep-sender", daemon=True)

    def start(self) -> None:
        """Begins to deliver."""
        self._thread.start()

    def wake(self) -> None:
        """Signals that the spool has new records."""
        self._news.set()

    def close(self, seconds: float) -> None:
        """Waits until all is delivered, at most `seconds`; not at all for a server that does not answer.

        A request that hangs for longer is abandoned: the daemon thread does not keep the process alive.
        """
        self._closing.set()
        self._news.set()
        self._thread.join(seconds)
        self._silent = True

    def _work(self) -> None:
        while not self._delivery.take_over():  # an earlier thread may still have a request open
            if self._closing.wait(self._delays.after_success):
                return
        try:
            while self._deliver():
                pass
        finally:
            self._delivery.hand_over()

    def _deliver(self) -> bool:
        """Delivers once and waits; returns whether to continue."""
        self._news.clear()  # before reading the spool: later records set it again
        last = self._closing.is_set()
        try:
            chunk = self._delivery.step()
        except Exception as error:  # no error may end the thread
            self._lost(error)
            self._closing.wait(self._wait_after_failure())
            return not last
        if chunk is None:
            self._caught_up()
            return not last and self._news.wait()
        self._sent_since += point_count(chunk.records)
        self._failures = 0
        if not chunk.full:
            self._closing.wait(self._delays.after_success)
        return True

    def _wait_after_failure(self) -> float:
        return min(self._delays.longest, self._delays.after_failure * 2.0 ** min(self._failures - 1, 30))

    def _lost(self, error: Exception) -> None:
        self._failures += 1
        if self._lost_at is None:
            self._lost_at, self._sent_since = time.monotonic(), 0
            self._warn("%s cannot be reached (%s); points are kept on disk, training continues", self._label, error)

    def _caught_up(self) -> None:
        if self._lost_at is not None:
            seconds, self._lost_at = time.monotonic() - self._lost_at, None
            self._warn("%s is back after %.0f s: %d points sent", self._label, seconds, self._sent_since)

    def _warn(self, *message: object) -> None:
        if not self._silent:
            logger.warning(*message)
