"""Data that does not say how many batches it has: the first pass counts them."""

import itertools
from collections.abc import Iterator
from typing import Any

from everstep.data.stream import Stream
from everstep.data.wrapping import WrappingStream
from everstep.types import Batch


class CountedStream(WrappingStream):
    """The batches of another stream, read pass by pass until somebody has counted them.

    The first pass ends the stream. Whoever read it calls `count`, and reads on: from then on pass follows pass, each of
    as many batches as the first, or fewer where the source has fewer.

    Args:
      stream: The other stream, at its beginning; one that does not repeat, such as a generator, is read once.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream, repeat=False, batches_per_epoch=None)

    @property
    def counting(self) -> bool:
        """Whether the first pass is still to tell how many batches there are."""
        return self._batches_per_epoch is None

    def count(self, batches: int) -> None:
        """Learns how many batches the first pass has."""
        self._batches_per_epoch, self._repeat = batches, self._stream.repeat

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the other stream's batches, no more than the first pass had."""
        return self._limited(self._stream.open(epoch, batch), batch)

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the same, found by the other stream's bookmark."""
        return self._limited(self._stream.open_at(epoch, batch, bookmark), batch)

    def bookmark(self) -> Any:
        """The other stream's."""
        return self._stream.bookmark()

    def _limited(self, batches: Iterator[Batch], batch: int) -> Iterator[Batch]:
        return batches if self.counting else itertools.islice(batches, self._batches_per_epoch - batch)  # type: ignore
