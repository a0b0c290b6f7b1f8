"""Streams that wrap another one: mapped, limited to fewer batches, kept in memory, or counted in a first pass."""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.data.arrays import ArrayStream
from everstep.data.stream import OwnRows, Part, Stream
from everstep.errors import UsageError
from everstep.types import Batch


class WrappingStream(Stream):
    """A stream with the batches of another one, in the same order and resumed as exactly.

    Positions and bookmarks are those of the other stream.

    Args:
      stream: The other stream, at its start.
      repeat: Whether epoch follows epoch without end.
      batches_per_epoch: The length of an epoch, None if not known beforehand.
    """

    def __init__(self, stream: Stream, *, repeat: bool, batches_per_epoch: int | None) -> None:
        super().__init__(repeat=repeat, batches_per_epoch=batches_per_epoch)
        self._stream = stream

    @property
    def sources(self) -> Mapping[str, Stream]:
        """The wrapped stream."""
        return {"": self._stream}

    @property
    def epoch_never_ends(self) -> bool:
        """Whether an epoch of the other stream never ends."""
        return self._stream.epoch_never_ends

    @property
    def is_single_pass(self) -> bool:
        """Whether the other stream can be read only once."""
        return self._stream.is_single_pass

    @property
    def why_not_exact(self) -> str:
        """Why the other stream is not exact."""
        return self._stream.why_not_exact

    @property
    def classes(self) -> Sequence[str]:
        """The names of the other stream's classes."""
        return self._stream.classes

    def sample_ids(self) -> Sequence[str] | None:
        """Returns the names of the other stream's samples, of which the first ones may be all that is read."""
        return self._stream.sample_ids()

    @property
    def notes(self) -> Sequence[str]:
        """What the log should say about the other stream."""
        return self._stream.notes

    @property
    def reads_rows(self) -> bool:
        """Whether the other stream has random access to samples."""
        return self._stream.reads_rows

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Returns rows of the other stream's batches."""
        return self._transform(self._stream.open_rows(epoch, batch, rows), batch)

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the other stream's batches, transformed."""
        return self._transform(self._stream.open(epoch, batch), batch)

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the other stream's batches from its bookmark on, transformed."""
        return self._transform(self._stream.open_at(epoch, batch, bookmark), batch)

    def bookmark(self) -> Any:
        """Returns the other stream's bookmark."""
        return self._stream.bookmark()

    def _transform(self, batches: Iterator[Any], batch: int) -> Iterator[Any]:
        """Returns an epoch's batches, or rows of them, from `batch` on, transformed by a subclass."""
        return batches


class MappedStream(WrappingStream):
    """The batches of another stream, each passed through a function on the host.

    Args:
      stream: The other stream, at its start.
      fn: The function.
      keeps_labels: Whether the function leaves labels as they are.

    Attributes:
      labelled_by: The stream that these batches have their labels from; None where the function may change them.
    """

    def __init__(self, stream: Stream, fn: Callable[[Batch], Batch], keeps_labels: bool = False) -> None:
        super().__init__(stream, repeat=stream.repeat, batches_per_epoch=stream.batches_per_epoch)
        self._fn = fn
        self.labelled_by = stream if keeps_labels else None

    @property
    def full_batches(self) -> int | None:
        """Those of the other stream."""
        return self._stream.full_batches

    @property
    def reads_rows(self) -> bool:
        """False: the function may need the whole batch."""
        return False

    def _transform(self, batches: Iterator[Any], batch: int) -> Iterator[Any]:
        return map(self._fn, batches)


def class_weighted(class_weight: Mapping[int, float]) -> Callable[[Batch], Batch]:
    """Returns a function that gives each sample of a batch the weight of its class.

    Labels are integers, or one-hot; existing weights are multiplied.
    """
    table = np.ones(max(class_weight) + 1, np.float32)
    for label, weight in class_weight.items():
        table[label] = weight

    def weigh(batch: Batch) -> tuple[Any, Any, np.ndarray]:
        if not isinstance(batch, (tuple, list)) or not 2 <= len(batch) <= 3:
            raise UsageError("needs batches (x, y) or (x, y, weight)", key="class_weight")
        x, y, weight = (*batch, None)[:3]
        if isinstance(y, Mapping | tuple | list):
            raise UsageError(
                "needs a model with one output", key="class_weight", remedy="give each sample a weight instead"
            )
        labels = np.asarray(y)
        if labels.ndim > 2 or not len(labels):
            raise UsageError(f"needs one label for each sample, not labels of shape {labels.shape}", key="class_weight")
        labels = labels.argmax(-1) if labels.ndim > 1 and labels.shape[-1] > 1 else labels.reshape(len(labels))
        numbers = np.nan_to_num(np.round(labels), nan=-1).astype(np.int64)
        known = (numbers >= 0) & (numbers < len(table))
        weights = np.where(known, table[np.where(known, numbers, 0)], np.float32(1))
        if weight is None:
            return x, y, weights
        return x, y, weights.reshape(-1, *(1,) * (np.ndim(weight) - 1)) * np.asarray(weight)

    return weigh


class LimitedStream(WrappingStream):
    """The first batches of each epoch of another stream.

        stream = LimitedStream(stream, 10)  # an epoch has 10 batches, or fewer if the other stream has fewer

    A stream whose epoch never ends gets epochs: after this many batches the next pass over the source starts.

    Args:
      stream: The other stream, at its start.
      batches: How many batches of each epoch to read, no more than the stream is known to have.
    """

    def __init__(self, stream: Stream, batches: int) -> None:
        known = stream.batches_per_epoch is not None or (stream.never_ends and not stream.repeat)
        super().__init__(stream, repeat=stream.repeat, batches_per_epoch=batches if known else None)
        self._limit = batches

    @property
    def epoch_never_ends(self) -> bool:
        """False: an epoch ends at the limit."""
        return False

    def _transform(self, batches: Iterator[Any], batch: int) -> Iterator[Any]:
        return itertools.islice(batches, self._limit - batch)


def limited(stream: Stream, batches: int | None) -> Stream:
    """Returns the stream with this many batches per epoch; unchanged for None, or if its parts are already limited.

    Raises:
      UsageError: The stream is known to have fewer batches.
    """
    if batches is None or stream.limits_each_source:
        return stream
    _require_batches(batches, stream.batches_per_epoch, "limit_batches")
    return stream.limited(batches) if isinstance(stream, ArrayStream) else LimitedStream(stream, batches)


class FirstBatchesStream(WrappingStream):
    """The same batches in every epoch, kept in memory; see `keep_first_batches`.

    Args:
      stream: The stream that the batches were read from.
      batches: The batches of an epoch.
      repeat: Whether epoch follows epoch without end.
    """

    def __init__(self, stream: Stream, batches: Sequence[Batch], *, repeat: bool) -> None:
        super().__init__(stream, repeat=repeat, batches_per_epoch=len(batches))
        self._kept = batches

    @property
    def epoch_never_ends(self) -> bool:
        """False: the batches are in memory."""
        return False

    @property
    def reads_rows(self) -> bool:
        """False: the batches are in memory."""
        return False

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the kept batches from that one on."""
        return iter(self._kept[batch:])

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the kept batches from that one on."""
        return self.open(epoch, batch)

    def bookmark(self) -> Any:
        """Returns None: the position is enough."""
        return None


def keep_first_batches(stream: Stream, batches: int, key: str) -> tuple[FirstBatchesStream, FirstBatchesStream]:
    """Reads the first batches of a stream; returns them twice: repeated, to train on, and once, to evaluate on.

    Args:
      stream: The stream, at its start.
      batches: How many batches to keep.
      key: The key that sets their number, for errors.

    Raises:
      UsageError: There are fewer batches, or the data is that of several tasks.
    """
    if stream.limits_each_source:
        raise UsageError(
            "cannot be used with the data of several tasks", key=key, received=batches, remedy="try each task by itself"
        )
    _require_batches(batches, stream.batches_per_epoch, key)
    first = list(itertools.islice(stream, batches))
    _require_batches(batches, len(first), key)
    return FirstBatchesStream(stream, first, repeat=True), FirstBatchesStream(stream, first, repeat=False)


def _require_batches(batches: int, available: int | None, key: str) -> None:
    if available is not None and available < batches:
        raise UsageError(
            f"but the data has {available} batches an epoch",
            key=key,
            received=batches,
            remedy=f"specify {available} or fewer",
        )


class CountedStream(WrappingStream):
    """The batches of another stream of unknown length: the first pass counts them.

    The stream ends after the first pass. Its reader then calls `set_batches_per_epoch` and continues: later passes have
    as many batches as the first, or fewer if the source has fewer.

    Args:
      stream: The other stream, at its start; one that does not repeat, such as a generator, is read once.
    """

    def __init__(self, stream: Stream) -> None:
        super().__init__(stream, repeat=False, batches_per_epoch=None)
        self._counted: int | None = None

    @property
    def repeat(self) -> bool:
        """Whether epoch follows epoch without end: once the batches are counted, as in the other stream."""
        return not self.is_counting_first_epoch and self._stream.repeat

    @property
    def batches_per_epoch(self) -> int | None:
        """The number of batches of the first pass; None until they are counted."""
        return self._counted

    @property
    def is_single_pass(self) -> bool:
        """True while the batches are counted: its reader continues."""
        return self.is_counting_first_epoch or self._stream.is_single_pass

    @property
    def is_counting_first_epoch(self) -> bool:
        """Whether the number of batches is not known yet."""
        return self._counted is None

    def set_batches_per_epoch(self, batches: int) -> None:
        """Sets how many batches the first pass has, when they are counted."""
        self._counted = batches

    def _transform(self, batches: Iterator[Any], batch: int) -> Iterator[Any]:
        if self._counted is None:
            return batches
        return itertools.islice(batches, self._counted - batch)
