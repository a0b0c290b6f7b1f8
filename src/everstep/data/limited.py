"""Fewer batches than there are: of each epoch the first ones, or the very same ones again and again."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from everstep.config.problem import ConfigError, Problem
from everstep.data.arrays import ArrayStream
from everstep.data.stream import Stream
from everstep.data.wrapping import WrappingStream
from everstep.types import Batch


class LimitedStream(WrappingStream):
    """The first batches of each epoch of another stream.

        stream = LimitedStream(stream, 10)  # an epoch has 10 batches, or fewer where the other one has

    Positions are those of the other stream. What does not end has epochs then: after so many batches the next pass
    over the source begins.

    Args:
      stream: The other stream, at its beginning.
      batches: How many batches of each epoch, no more than it is known to have.
    """

    def __init__(self, stream: Stream, batches: int) -> None:
        known = stream.batches_per_epoch is not None or (stream.endless and not stream.repeat)
        super().__init__(stream, repeat=stream.repeat, batches_per_epoch=batches if known else None)
        self._limit = batches

    @property
    def infinite(self) -> bool:
        """A limit is an end."""
        return False

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the other stream's batches, up to the limit."""
        return itertools.islice(self._stream.open(epoch, batch), self._limit - batch)

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the other stream's batches, found by its bookmark, up to the limit."""
        return itertools.islice(self._stream.open_at(epoch, batch, bookmark), self._limit - batch)

    def bookmark(self) -> Any:
        """The other stream's."""
        return self._stream.bookmark()


class HeldStream(WrappingStream):
    """The same batches in every epoch, kept in memory; made by `hold`.

    Args:
      stream: Where they were read from.
      batches: They.
      repeat: Whether epoch follows epoch without end.
    """

    def __init__(self, stream: Stream, batches: Sequence[Batch], *, repeat: bool) -> None:
        super().__init__(stream, repeat=repeat, batches_per_epoch=len(batches))
        self._held = batches

    @property
    def infinite(self) -> bool:
        """They are in memory."""
        return False

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns them, from that one on."""
        return iter(self._held[batch:])


def hold(stream: Stream, batches: int, key: str) -> tuple[HeldStream, HeldStream]:
    """Reads the first batches of a stream; returns them twice: again and again to train on, and once to evaluate on.

    Args:
      stream: The stream, at its beginning.
      batches: How many.
      key: The key that asks for them, for the message.

    Raises:
      UsageError: There are fewer, or they are of several tasks.
    """
    if stream.limits_parts:
        text = f"received {batches}, but the data is that of several tasks: try each of them by itself"
        raise ConfigError([Problem(key, text)])
    _require(stream, batches, key)
    held = list(itertools.islice(stream, batches))
    if len(held) < batches:
        raise _too_many(key, batches, len(held))
    return HeldStream(stream, held, repeat=True), HeldStream(stream, held, repeat=False)


def limited(stream: Stream, batches: int | None) -> Stream:
    """Returns the stream with so many batches an epoch; as it is for None, or where its parts have seen to it.

    Raises:
      UsageError: It is known to have fewer.
    """
    if batches is None or stream.limits_parts:
        return stream
    _require(stream, batches, "limit_batches")
    return stream.limited(batches) if isinstance(stream, ArrayStream) else LimitedStream(stream, batches)


def _require(stream: Stream, batches: int, key: str) -> None:
    if stream.batches_per_epoch is not None and stream.batches_per_epoch < batches:
        raise _too_many(key, batches, stream.batches_per_epoch)


def _too_many(key: str, batches: int, there_are: int) -> ConfigError:
    text = f"received {batches}, but the data has {there_are} batches an epoch: give {there_are} or fewer"
    return ConfigError([Problem(key, text)])
