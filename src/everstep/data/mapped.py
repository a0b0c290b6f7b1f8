"""A stream whose batches go through a function on the host."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from everstep.data.stream import Stream
from everstep.data.wrapping import WrappingStream
from everstep.errors import UsageError
from everstep.types import Batch


class MappedStream(WrappingStream):
    """The batches of another stream, each passed through `fn`; the position is the other's."""

    def __init__(self, stream: Stream, fn: Callable[[Batch], Batch]) -> None:
        super().__init__(stream, repeat=stream.repeat, batches_per_epoch=stream.batches_per_epoch)
        self._fn = fn

    @property
    def endless(self) -> bool:
        """The other stream's."""
        return self._stream.endless

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the other stream's batches, mapped."""
        return map(self._fn, self._stream.open(epoch, batch))

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the other stream's batches, found by its bookmark, mapped."""
        return map(self._fn, self._stream.open_at(epoch, batch, bookmark))

    def bookmark(self) -> Any:
        """The other stream's."""
        return self._stream.bookmark()


def class_weighted(class_weight: Mapping[int, float]) -> Callable[[Batch], Batch]:
    """Returns a function that gives each sample of a batch the weight of its class.

    Labels are integers, or one-hot; weights that are there already are multiplied.
    """
    table = np.ones(max(class_weight) + 1, np.float32)
    for label, weight in class_weight.items():
        table[label] = weight

    def weigh(batch: Batch) -> tuple[Any, Any, np.ndarray]:
        if not isinstance(batch, (tuple, list)) or not 2 <= len(batch) <= 3:
            raise UsageError("class_weight needs batches (x, y) or (x, y, weight)")
        x, y, weight = (*batch, None)[:3]
        if isinstance(y, Mapping | tuple | list):
            raise UsageError("class_weight needs a model with one output: give each sample a weight instead")
        labels = np.asarray(y)
        if labels.ndim > 2 or not len(labels):
            raise UsageError(f"class_weight needs one label for each sample, received labels {labels.shape}")
        labels = labels.argmax(-1) if labels.ndim > 1 and labels.shape[-1] > 1 else labels.reshape(len(labels))
        numbers = np.round(labels).astype(np.int64)
        known = (numbers >= 0) & (numbers < len(table))
        weights = np.where(known, table[np.where(known, numbers, 0)], np.float32(1))
        if weight is None:
            return x, y, weights
        return x, y, weights.reshape(-1, *(1,) * (np.ndim(weight) - 1)) * np.asarray(weight)

    return weigh
