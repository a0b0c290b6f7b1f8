"""What streams have in common that are made of another one."""

from collections.abc import Mapping

from everstep.data.stream import Stream


class WrappingStream(Stream):
    """A stream made of another one, whose batches it hands on; their order, and what it promises, are the other's.

    Args:
      stream: The other one.
      repeat: Whether epoch follows epoch without end.
      batches_per_epoch: How many there are; None where nobody knows.
    """

    def __init__(self, stream: Stream, *, repeat: bool, batches_per_epoch: int | None) -> None:
        super().__init__(repeat=repeat, batches_per_epoch=batches_per_epoch)
        self._stream = stream

    @property
    def made_of(self) -> Mapping[str, Stream]:
        """The other stream."""
        return {"": self._stream}

    @property
    def infinite(self) -> bool:
        """The other stream's."""
        return self._stream.infinite

    @property
    def guarantee(self) -> str:
        """The other stream's."""
        return self._stream.guarantee
