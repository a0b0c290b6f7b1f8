"""`Feed`: prefetches batches in one background thread, which reads, checks, stacks and places them on the device.

The position of a feed is that of the last piece taken, however far the thread has read ahead. A source may be slow, or
never return: while waiting for it, the feed polls whether a stop was requested.

Where all that is left to take is in memory and fits in one call, as in a short `fit`, there is no thread: the caller
reads it. That takes less time than to start a thread, and both would compete for Python's lock.

Two threads: the caller takes, the feed's thread reads. What they share:

- `_queue`: pieces from the thread to the caller, an error, or None at the end; `_closed` ends the thread.
- `_counters_lock` guards the numbers of batches: of the window, still to be read for it, and read but not taken.
- `_reading` is held by the thread while it reads the stream. `_gate` is acquired before it, by the thread for a moment,
  by `paused` for the whole block: so the thread finishes the block that it reads, and does not begin another one.
- `_agreement`: where several processes train, the lengths of pieces are those of the first one; see
  `call_agreement.py`.
- `_abandoned`: after a stop request the source did not return within `GRACE_SECONDS`. Nothing is taken any more, and
  nothing waits for the thread, which ends with the process.
"""

import contextlib
import dataclasses
import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from everstep.data import Block, Stream, randomness
from everstep.engine.call_agreement import CallAgreement
from everstep.engine.call_length import CallLength
from everstep.errors import TrainingError, UsageError
from everstep.types import StreamState

AHEAD = 3  # pieces that are prefetched
POLL_SECONDS = 0.1  # between two checks whether a stop was requested
UNKNOWN_LENGTH_WINDOW = 10_000  # announced where the length of an epoch is unknown; not a limit
GRACE_SECONDS = 2.0  # how long to wait for a source after a stop was requested

logger = logging.getLogger(__name__)


class FeedInterrupted(TrainingError):
    """The next batch is not ready, and a stop was requested; it can be taken later."""


@dataclasses.dataclass(frozen=True)
class Piece:
    """The batches of one engine call: on the host, and placed on the device."""

    block: Block
    placed: Any
    samples: int = 0  # in all batches of the piece

    @property
    def count(self) -> int:
        """The number of batches in the piece."""
        return self.block.count


class Feed:
    """Feeds an engine from a stream.

    Args:
      stream: The stream to read; nothing else may use it while the feed is open.
      place: Places a block on the device; a method of the engine.
      call_length: Plans how many steps each call holds.
      check: Called with each block on the host; may raise.
      may_wait: Polled while waiting for the source; returns False once a stop is requested.
    """

    def __init__(
        self,
        stream: Stream,
        place: Callable[[Block], Any],
        call_length: CallLength,
        check: Callable[[Any], None] | None = None,
        may_wait: Callable[[], bool] = lambda: True,
    ) -> None:
        self._stream, self._place, self._call_length, self._check = stream, place, call_length, check
        self._may_wait = may_wait
        self._thread: threading.Thread | None = None
        self._state = stream.state()
        self.samples = 0  # in the pieces taken so far
        self.waited = 0.0  # seconds spent waiting for the source
        self._agreement = CallAgreement(lambda: self._closed.is_set())
        self._open()

    def _open(self) -> None:
        self._window = 1  # batches of a window, as announced
        self._unread = 0  # batches of the current window that the thread has not read yet
        self._untaken = 0  # batches that were read and not taken yet
        self._same_shape = 1  # batches of a window that have one shape, and can be in one call
        self._all_at_once = False  # whether the caller reads, because little is left
        self._read_by_caller: Iterator[Piece] | None = None
        self._leftover: Block | None = None  # of a block that was longer than requested
        self._ended = False
        self._stopping = False  # whether the thread pauses, because a stop was requested
        self._counters_lock = threading.Lock()
        self._gate = threading.RLock()
        self._reading = threading.RLock()
        self._abandoned = False
        self._queue: queue.Queue[Piece | BaseException | None] = queue.Queue(maxsize=AHEAD)
        self._closed = threading.Event()
        self._agreement.begin()

    def state(self) -> StreamState:
        """Returns the position after the last batch that was taken."""
        return self._state

    @property
    def closed(self) -> bool:
        """Whether the feed was closed, so that nothing can be taken."""
        return self._closed.is_set()

    def restore(self, state: StreamState) -> None:
        """Moves to a position; prefetched pieces are dropped.

        Raises:
          FeedInterrupted: The stream is still being read, and a stop was requested.
        """
        self._stop()
        if not self._wait_for(self._has_ended):
            self._state = state  # a checkpoint saved now resumes there
            raise FeedInterrupted("the data source is still being read and cannot move to another position")
        self._stream.restore(state)
        self._state = self._stream.state()
        self._open()

    def expect(self, window: int | None, steps_left: int | None = None, is_last: bool = False) -> None:
        """Announces that `window` batches will be taken next, and the same number again until the next call of this.

        Prefetched pieces are cut to fit, so that a window has as few calls as possible.

        Args:
          window: The number of batches; None for a whole epoch.
          steps_left: How many batches will be taken in windows like this one; None if that is unknown.
          is_last: Whether nothing is taken after this window.
        """
        per_epoch, full = self._stream.batches_per_epoch, self._stream.full_batches
        window = window or per_epoch or UNKNOWN_LENGTH_WINDOW
        self._call_length.expect(steps_left)
        with self._counters_lock:
            self._window = self._same_shape = window
            if full and full != per_epoch:  # a short batch, which is a call by itself, follows
                self._same_shape = min(window, full)
            self._unread = (window - self._untaken) % window
        left = window if is_last else steps_left or 0
        is_small = left >= window and self._call_length.fits(left)
        self._all_at_once = is_small and self._stream.supports_fast_gather and self._agreement.gang.size == 1

    def take(self, n: int) -> Piece | None:
        """Returns the next piece of at most `n` batches, or None when the data has ended.

        Raises:
          UsageError: The feed is closed.
          FeedInterrupted: The next piece is not ready, and a stop was requested.
          Exception: The error of reading or checking the next batch; a later call retries.
        """
        if self._closed.is_set():
            raise UsageError("the feed is closed", remedy="open another one, or restore a position")
        if self._abandoned:
            raise FeedInterrupted("the data source did not respond and was abandoned")
        self._stopping = False
        self._start()
        piece = self._awaited()
        if self._leftover is not None:
            piece = self._first_call(self._leftover, n)
        if piece is None:
            return None
        piece = piece if piece.count <= n else self._first_call(piece.block, n)
        with self._counters_lock:
            self._untaken -= piece.count
        self._state = piece.block.states[-1]
        self.samples += piece.samples
        return piece

    def _awaited(self) -> Piece | None:
        """Returns the next piece, None at the end or if there is a leftover, when all processes have theirs.

        Raises:
          FeedInterrupted: A stop was requested, of any of the processes; the piece can be taken later.
        """
        try:
            piece = self._next() if self._leftover is None else None
        except FeedInterrupted:
            self._agreement.stops(lambda: True)
            raise
        if self._agreement.stops(lambda: not self._may_wait()):
            self._leftover = self._leftover if piece is None else piece.block
            raise FeedInterrupted("a stop was requested of one of the processes")
        return piece

    def at_end(self) -> bool:
        """Whether there are no more batches; waits for the source, without moving the position."""
        while self._leftover is None and not self._ended and not self._closed.is_set() and not self._abandoned:
            self._stopping = False
            self._start()
            try:
                piece = self._next()
                self._leftover = None if piece is None else piece.block
            except FeedInterrupted:
                if self._agreement.gang.size == 1:  # several processes go on until they have agreed to stop
                    break
        return self._ended and self._leftover is None

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Pauses prefetching inside the block: the caller may use the global random generators, as sources do.

        Once a stop is requested, a source that does not return is abandoned; nothing can be taken after that.
        """
        with self._gate:
            paused = self._wait_for(lambda seconds: self._reading.acquire(timeout=seconds))
            if not paused:
                self._abandon()
                randomness.take_back()
            try:
                yield
            finally:
                if paused:
                    self._reading.release()

    def close(self) -> None:
        """Stops the thread; a thread that is stuck in the source is abandoned and ends with the process."""
        if self._closed.is_set():
            return
        self._stop()
        if not self._has_ended(self._grace_seconds):
            self._abandon()

    def _stop(self) -> None:
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._queue.get_nowait()

    def _has_ended(self, seconds: float) -> bool:
        """Waits some seconds for the thread to end; returns whether it has."""
        if self._thread is not None:
            self._thread.join(seconds)
            if self._thread.is_alive():
                return False
            self._thread = None
        return True

    def _wait_for(self, succeeds: Callable[[float], bool]) -> bool:
        """Retries until `succeeds` returns True; after a requested stop only for the grace period. Returns whether."""
        while not succeeds(POLL_SECONDS):
            if self._stop_requested():
                return succeeds(self._grace_seconds)
        return True

    @property
    def _grace_seconds(self) -> float:
        """How long to wait for the source after a stop was requested."""
        return 0.0 if self._abandoned else GRACE_SECONDS

    def _stop_requested(self) -> bool:
        self._stopping = not self._may_wait()
        return self._stopping

    def _abandon(self) -> None:
        """Gives up a source that does not return; logs a warning the first time."""
        if not self._abandoned:
            logger.warning(
                "the data source has not responded for %g s and is abandoned in a thread that ends with the process; "
                "no step is lost, since the position is that of the last batch used",
                GRACE_SECONDS,
            )
        self._abandoned = True

    def _start(self) -> None:
        if self._thread is None and self._all_at_once and self._read_by_caller is None:
            self._read_by_caller = self._read_pieces()
        if self._thread is None and self._read_by_caller is None:
            self._thread = threading.Thread(target=self._read, name="everstep-feed", daemon=True)
            self._thread.start()

    def _next(self) -> Piece | None:
        piece = None if self._ended else self._get()
        if isinstance(piece, BaseException):
            self.restore(self._state)
            raise piece
        self._ended = piece is None
        if piece is not None:
            self._agreement.on_taken()
        return piece

    def _get(self) -> Piece | BaseException | None:
        if self._read_by_caller is not None:
            return self._get_from_source(self._read_by_caller)
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        begin = time.perf_counter()
        try:
            return self._wait_for_piece()
        finally:
            self.waited += time.perf_counter() - begin

    def _get_from_source(self, pieces: Iterator[Piece]) -> Piece | BaseException | None:
        begin = time.perf_counter()
        try:
            return next(pieces, None)
        except BaseException as error:
            return error
        finally:
            self.waited += time.perf_counter() - begin

    def _wait_for_piece(self) -> Piece | BaseException | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=POLL_SECONDS)
            if self._stop_requested():
                raise FeedInterrupted("the next batch is not ready, and a stop was requested")

    def _first_call(self, block: Block, n: int) -> Piece:
        """Cuts a call of at most `n` batches off a block; what is left over is kept for the next call."""
        length = self._agreement.cut(self._call_length.length(self._same_shape, min(n, block.count)))
        head, self._leftover = block.split(length) if length < block.count else (block, None)
        return self._piece(head)

    def _piece(self, block: Block) -> Piece:
        return Piece(block, self._place(block), block.samples)

    # -- the thread ----------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        try:
            for piece in self._read_pieces():
                if not self._put(piece):
                    return
            self._put(None)
        except BaseException as error:  # raised by `take`
            self._put(error)

    def _read_pieces(self) -> Iterator[Piece]:
        while (block := self._read_block()) is not None:
            with self._counters_lock:
                self._untaken += block.count
                self._unread -= block.count
            if self._check is not None:
                self._check(block.data)
            yield from self._pieces(block)

    def _read_block(self) -> Block | None:
        """Returns the next batches: as many as planned, or as the first process has read; None at the end."""
        agreement, length = self._agreement, None
        # Outside of the lock: the first process may pause.
        if agreement.follows and (length := agreement.next_length()) is None:
            return None
        if not self._may_read():
            return None
        try:
            block = (
                self._stream.block(self._wanted()) if length is None else self._stream.block(max(length, 1), math.inf)
            )
        finally:
            self._reading.release()
        agreement.require(length or 0, 0 if block is None else block.count)
        if block is None:
            agreement.on_read(0)
        return block

    def _may_read(self) -> bool:
        while not self._closed.is_set():
            if self._stopping:
                self._closed.wait(POLL_SECONDS)
            elif self._gate.acquire(timeout=POLL_SECONDS):
                self._reading.acquire()  # free, since a caller that pauses also holds the gate
                self._gate.release()
                return True
        return False

    def _wanted(self) -> int:
        with self._counters_lock:
            self._unread = self._unread if self._unread > 0 else self._window
            if self._all_at_once:
                return self._unread
            planned = self._call_length.planned(self._same_shape, self._unread)
            # Calls of few steps are cut from a longer block where that is read in the time of a batch.
            return (
                max(planned, min(self._unread, self._call_length.readable))
                if self._stream.supports_fast_gather
                else planned
            )

    def _pieces(self, block: Block) -> Iterator[Piece]:
        """Cuts a block into calls; it may hold fewer batches than requested, at the end of an epoch."""
        rest: Block | None = block
        while rest is not None:
            planned = self._call_length.length(self._same_shape, rest.count)
            length = rest.count if self._agreement.follows else planned
            self._agreement.on_read(length)
            head, rest = rest.split(length) if length < rest.count else (rest, None)
            yield self._piece(head)

    def _put(self, piece: Piece | BaseException | None) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(piece, timeout=POLL_SECONDS)
                return True
        return False
