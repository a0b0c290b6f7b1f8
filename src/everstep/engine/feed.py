"""`Feed`: prefetches batches in one background thread, which reads, checks, stacks and places them on the device.

The position of a feed is that of the last piece taken, however far the thread has read ahead. A source may be slow, or
never return: while waiting for it, the feed polls whether a stop was requested.
"""

import contextlib
import dataclasses
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np

from everstep.data import nest, randomness
from everstep.data.arrays import is_text
from everstep.data.stream import Block, Stream
from everstep.engine.call_length import CallLength
from everstep.errors import TrainingError, UsageError
from everstep.task.task import unpack
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


def on_host(leaf: Any) -> np.ndarray:
    """Returns an array as it is placed on the device: float64 becomes Keras's float type.

    Raises:
      UsageError: No device computes with arrays of this dtype.
    """
    array = np.asarray(leaf)
    if array.dtype.kind not in "fiub" and "float" not in array.dtype.name:
        if is_text(array) and keras.backend.backend() == "tensorflow":
            return array
        raise UsageError(
            "no device computes with arrays of this dtype",
            key="dtype of a batch",
            received=str(array.dtype),
            remedy="convert them to numbers",
        )
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


def check_leaves(batch: Any) -> None:
    """Refuses text and Python objects, with which no device computes; TensorFlow accepts text as features.

    Raises:
      UsageError: The batch holds some; the key says where.
    """
    if batch is None:
        return
    for part, name in zip(unpack(batch), ("x", "y", "sample_weight"), strict=True):
        for path, leaf in nest.walk(part):
            array = np.asarray(leaf)
            if is_text(array):
                _check_text(f"{name}{path}", array, name)
            elif array.dtype == object:
                raise UsageError(
                    f"holds Python objects, such as {_example(array)}",
                    key=f"{name}{path}",
                    remedy="pass numbers; pad rows of different lengths, as keras.utils.pad_sequences does",
                )


def _check_text(key: str, array: np.ndarray, name: str) -> None:
    text = f"holds text, such as {_example(array)}"
    if name != "x":
        raise UsageError(
            text,
            key=key,
            remedy="labels must be numbers; number the classes first: names, y = np.unique(y, return_inverse=True)",
        )
    if keras.backend.backend() != "tensorflow":
        raise UsageError(
            f"{text}, which the backend {keras.backend.backend()!r} cannot compute with",
            key=key,
            remedy="convert it to numbers before it reaches the model, with keras.layers.TextVectorization or "
            "StringLookup called on the data, as in dataset.map; inside the model they work only on TensorFlow",
        )


def _example(array: np.ndarray) -> str:
    shown = repr(array.reshape(-1)[:1].tolist()[0])
    return shown if len(shown) < 40 else f"{shown[:37]}..."


class Feed:
    """Feeds an engine from a stream.

    Args:
      stream: The stream to read; nothing else may use it while the feed is open.
      place: Places the data of a block on the device; a method of the engine.
      call_length: Plans how many steps each call holds.
      check: Called with each block on the host; may raise.
      may_wait: Polled while waiting for the source; returns False once a stop is requested.
    """

    def __init__(
        self,
        stream: Stream,
        place: Callable[[Any], Any],
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
        self._open()

    def _open(self) -> None:
        self._window, self._left, self._ahead = 1, 0, 0
        self._stretch = 1  # the batches of a window that can be in one call
        self._rest: Block | None = None  # of a block that was longer than requested
        self._ended = False
        self._stopping = False  # whether the thread pauses, because a stop was requested
        self._lock = threading.Lock()
        self._gate = threading.RLock()  # acquired before each read: a caller that pauses the thread holds it
        self._reading = threading.RLock()  # held by the thread while it reads the stream
        self._grace = GRACE_SECONDS
        self._queue: queue.Queue[Piece | BaseException | None] = queue.Queue(maxsize=AHEAD)
        self._closed = threading.Event()

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

    def expect(self, window: int | None, steps_left: int | None = None) -> None:
        """Announces that `window` batches will be taken next, and the same number again until the next call of this.

        Prefetched pieces are cut to fit, so that a window has as few calls as possible.

        Args:
          window: The number of batches; None for a whole epoch.
          steps_left: How many batches will be taken in windows like this one; None if that is unknown.
        """
        per_epoch, full = self._stream.batches_per_epoch, self._stream.full_batches
        window = window or per_epoch or UNKNOWN_LENGTH_WINDOW
        self._call_length.expect(steps_left)
        with self._lock:
            self._window = self._stretch = window
            if full and full != per_epoch:  # a short batch, which is a call by itself, follows
                self._stretch = min(window, full)
            self._left = (window - self._ahead) % window

    def take(self, n: int) -> Piece | None:
        """Returns the next piece of at most `n` batches, or None when the data has ended.

        Raises:
          UsageError: The feed is closed.
          FeedInterrupted: The next piece is not ready, and a stop was requested.
          Exception: The error of reading or checking the next batch; a later call retries.
        """
        if self._closed.is_set():
            raise UsageError("the feed is closed", remedy="open another one, or restore a position")
        if not self._grace:
            raise FeedInterrupted("the data source did not respond and was abandoned")
        self._stopping = False
        self._start()
        piece = self._next() if self._rest is None else self._cut(self._rest, n)
        if piece is None:
            return None
        piece = piece if piece.count <= n else self._cut(piece.block, n)
        with self._lock:
            self._ahead -= piece.count
        self._state = piece.block.states[-1]
        self.samples += piece.samples
        return piece

    def at_end(self) -> bool:
        """Whether there are no more batches; waits for the source, without moving the position."""
        if self._rest is None and not self._closed.is_set() and self._grace:
            self._stopping = False
            self._start()
            with contextlib.suppress(FeedInterrupted):
                piece = self._next()
                self._rest = None if piece is None else piece.block
        return self._ended and self._rest is None

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
        if not self._has_ended(self._grace):
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
                return succeeds(self._grace)
        return True

    def _stop_requested(self) -> bool:
        self._stopping = not self._may_wait()
        return self._stopping

    def _abandon(self) -> None:
        """Ends the grace period of a source that does not return; logs a warning the first time."""
        if self._grace:
            logger.warning(
                "the data source has not responded for %g s and is abandoned in a thread that ends with the process; "
                "no step is lost, since the position is that of the last batch used",
                self._grace,
            )
        self._grace = 0.0

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._read, name="everstep-feed", daemon=True)
            self._thread.start()

    def _next(self) -> Piece | None:
        piece = None if self._ended else self._get()
        if isinstance(piece, BaseException):
            self.restore(self._state)
            raise piece
        self._ended = piece is None
        return piece

    def _get(self) -> Piece | BaseException | None:
        with contextlib.suppress(queue.Empty):
            return self._queue.get_nowait()
        begin = time.perf_counter()
        try:
            return self._wait_for_piece()
        finally:
            self.waited += time.perf_counter() - begin

    def _wait_for_piece(self) -> Piece | BaseException | None:
        while True:
            with contextlib.suppress(queue.Empty):
                return self._queue.get(timeout=POLL_SECONDS)
            if self._stop_requested():
                raise FeedInterrupted("the next batch is not ready, and a stop was requested")

    def _cut(self, block: Block, n: int) -> Piece:
        """Cuts a call of at most `n` batches off a block; the rest is kept for the next one."""
        length = self._call_length.length(self._stretch, min(n, block.count))
        head, self._rest = block.split(length) if length < block.count else (block, None)
        return self._piece(head)

    def _piece(self, block: Block) -> Piece:
        return Piece(block, self._place(block.data), _samples(block))

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
        while self._may_read():
            try:
                block = self._stream.block(self._wanted())
            finally:
                self._reading.release()
            if block is None:
                return
            with self._lock:
                self._ahead += block.count
                self._left -= block.count
            if self._check is not None:
                self._check(block.data)
            yield from self._pieces(block)

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
        with self._lock:
            self._left = self._left if self._left > 0 else self._window
            return self._call_length.planned(self._stretch, self._left)

    def _pieces(self, block: Block) -> Iterator[Piece]:
        """Cuts a block into calls; it may hold fewer batches than requested, at the end of an epoch."""
        rest: Block | None = block
        while rest is not None:
            length = self._call_length.length(self._stretch, rest.count)
            head, rest = rest.split(length) if length < rest.count else (rest, None)
            yield self._piece(head)

    def _put(self, piece: Piece | BaseException | None) -> bool:
        while not self._closed.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(piece, timeout=POLL_SECONDS)
                return True
        return False


def _samples(block: Block) -> int:
    """Returns how many samples a block has: batches along the first axis, samples along the second."""
    shape = np.shape(nest.flatten(block.data)[0])
    return int(shape[0] * shape[1]) if len(shape) > 1 else block.count
