"""Grain: `DataLoader`, `MapDataset` and `IterDataset`, resumed by Grain's own state.

The second half inspects the steps of a pipeline without reading from it. Grain's `parents` are public; the arguments of
a step are not, so a missing attribute is never an error.
"""

import importlib
import itertools
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from absl import flags

from everstep.data import nest, sparse
from everstep.data.stream import Stream, skip
from everstep.data.workers import end_with_parent
from everstep.errors import UsageError
from everstep.types import Batch

_AHEAD = 8  # batches of a MapDataset computed ahead, each by a thread
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class GrainStream(Stream):
    """Batches of a Grain pipeline, with its worker processes if it has any.

        dataset = grain.MapDataset.source(records).seed(1).shuffle().map(decode).batch(32)
        stream = GrainStream(dataset, repeat=True)

    Grain's iterators have a state. It is saved beside epoch and batch, as the bookmark, and a resumed run goes there at
    once: nothing before it is read. Without a bookmark, a `MapDataset` is read from the index that follows from the
    batch, and of the others the batches before are read and dropped.

    An epoch is what the pipeline gives until it ends. A `MapDataset` continues: its second epoch has the indices after
    those of its first, by which Grain shuffles and draws again, as `repeat` would. A `DataLoader` and an `IterDataset`
    begin again, each epoch the same as the first; a sampler with `num_epochs=None`, or `repeat()` before
    `to_iter_dataset()`, gives one endless pass in which every round has its own order.

    Elements in which some leaf has no axis are samples, and are stacked to batches.

    Args:
      source: The pipeline.
      batch_size: Samples per batch, where it yields samples.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of stacked samples is dropped.
    """

    def __init__(self, source: Any, *, batch_size: int = 32, repeat: bool = False, drop_remainder: bool = False):
        if batch_size < 1:
            raise UsageError("must be at least 1", key="global_batch_size", received=batch_size)
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain asks for some of them when it starts a worker
        self._source, self._steps = source, _last_step(source)
        _end_workers_with_run(self._steps)
        self._batch_size, self._drop_remainder = batch_size, drop_remainder
        self._infinite = _is_endless(self._steps)
        self._indexed = _Indexed.of(source, batch_size, drop_remainder)
        self._pass: _Pass | None = None
        super().__init__(repeat=repeat, batches_per_epoch=self._indexed.batches if self._indexed else None)

    @property
    def infinite(self) -> bool:
        """Whether the pipeline repeats itself."""
        return self._infinite

    @property
    def endless(self) -> bool:
        """Whether the pipeline repeats itself, or is repeated here."""
        return self._infinite or super().endless

    @property
    def guarantee(self) -> str:
        """What makes Grain's own state inexact; see `Stream.guarantee`."""
        if not _has_operations(self._steps):
            return ""
        return (
            "the grain.DataLoader has an operation over the whole iterator, whose state Grain does not save: use "
            "transformations of single elements (grain.transforms), or grain.MapDataset"
        )

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on, by its index if the source has indices."""
        opened = self._begin(epoch)
        index = self._indexed.index(batch) if self._indexed else None
        if index is None:
            skip(opened, batch, batch)
        elif index > 0:
            opened.go_to({"next_index": index})
        return opened

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the epoch's batches from Grain's saved state on."""
        opened = self._begin(epoch)
        opened.go_to(bookmark)
        return opened

    def bookmark(self) -> Any:
        """Returns Grain's state."""
        return None if self._pass is None else self._pass.state()

    def _begin(self, epoch: int) -> "_Pass":
        if self._pass is not None:
            self._pass.close()
        elements = self._indexed.elements(epoch) if self._indexed else self._source
        self._pass = _Pass(iter(elements), self._batch_size, self._drop_remainder)
        return self._pass


class _Indexed:
    """A `MapDataset`: every element of every epoch has an index."""

    def __init__(self, dataset: Any, batch_size: int, drop_remainder: bool) -> None:
        self._dataset, self._size = dataset, len(dataset)
        self._sparse = _is_sparse(dataset)
        self._endless = _is_endless(dataset)
        self._samples = self._has_samples()
        self._each = batch_size if self._samples else 1
        full, rest = divmod(self._size, self._each)
        counted = full + (rest > 0 and not drop_remainder)
        self.batches = None if self._sparse or self._endless else counted

    @classmethod
    def of(cls, source: Any, batch_size: int, drop_remainder: bool) -> "_Indexed | None":
        """Returns the source with its indices, None if it has none."""
        has = hasattr(source, "__getitem__") and hasattr(source, "to_iter_dataset")
        return cls(source, batch_size, drop_remainder) if has else None

    def index(self, batch: int) -> int | None:
        """Returns the index at which a batch of an epoch begins, None if one cannot tell."""
        return None if self._sparse else min(batch * self._each, self._size)

    def elements(self, epoch: int) -> Any:
        """Returns the elements of an epoch."""
        if epoch == 0 or self._endless:
            return self._dataset.to_iter_dataset(self._options())
        here = slice(epoch * self._size, (epoch + 1) * self._size)
        return self._dataset.repeat()[here].to_iter_dataset(self._options())

    def _options(self) -> Any:
        """Returns how much Grain prefetches: its default of 500 elements is meant for samples, not for batches."""
        if self._samples:
            return None
        return importlib.import_module("grain").ReadOptions(num_threads=_AHEAD, prefetch_buffer_size=_AHEAD)

    def _has_samples(self) -> bool:
        elements = (self._dataset[index] for index in range(self._size))
        first = next((element for element in elements if element is not None), None)
        return first is not None and _is_sample(first)


class _Pass(Iterator[Batch]):
    """One pass over a pipeline, as batches."""

    def __init__(self, elements: Any, batch_size: int, drop_remainder: bool) -> None:
        self._elements, self._batch_size, self._drop_remainder = elements, batch_size, drop_remainder
        self._batches: Iterator[Batch] | None = None

    def __next__(self) -> Batch:
        if self._batches is None:
            first = next(self._elements)
            every = itertools.chain([first], self._elements)
            self._batches = self._stacked(every) if _is_sample(first) else map(_arrays, every)
        return next(self._batches)

    def state(self) -> Any:
        """Returns Grain's state, without what would be another in the next process."""
        state = self._elements.get_state()
        text = state.decode() if isinstance(state, bytes) else json.dumps(state)
        return json.loads(_ADDRESS.sub("", text))

    def go_to(self, state: Any) -> None:
        """Goes to where `state` was once returned.

        Raises:
          UsageError: The pipeline is another one than that.
        """
        if list(_cycles(state)) != list(_cycles(self.state())):
            raise _other_pipeline("the number of workers, or of datasets read in turn, has changed")
        try:
            self._set(state)
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise _other_pipeline(str(error).splitlines()[0] if str(error) else type(error).__name__) from error

    def close(self) -> None:
        """Ends the workers."""
        close = getattr(self._elements, "close", None)
        self._elements = None  # a DataLoader's iterator ends them when nobody knows it any more
        self._batches = None
        if close is not None:
            close()

    def _set(self, state: Any) -> None:
        own = self._elements.get_state()
        if not isinstance(own, bytes):
            self._elements.set_state(state)
            return
        # Grain compares how sampler and source print, which for many is where in memory they are.
        same = {key: text for key, text in json.loads(own).items() if _without_address(text) == state.get(key)}
        self._elements.set_state(json.dumps({**state, **same}).encode())

    def _stacked(self, samples: Iterator[Any]) -> Iterator[Batch]:
        while chunk := list(itertools.islice(samples, self._batch_size)):
            if len(chunk) < self._batch_size and self._drop_remainder:
                return
            yield nest.stack(chunk)


def _is_sample(element: Any) -> bool:
    """Whether some leaf has no axis, so that there can be no samples along it."""
    return any(np.ndim(leaf) == 0 for leaf in nest.flatten(element))


def _arrays(element: Any) -> Batch:
    return nest.map_leaves(sparse.on_host, element)


def _without_address(text: Any) -> Any:
    return _ADDRESS.sub("", text) if isinstance(text, str) else text


def _cycles(state: Any) -> Iterator[int]:
    """Yields how many iterators are read in turn, at every place where some are: Grain does not compare that."""
    if isinstance(state, dict):
        if isinstance(state.get("iterators_in_use_indices"), list):
            yield len(state["iterators_in_use_indices"])
        state = list(state.values())
    if isinstance(state, list):
        for part in state:
            yield from _cycles(part)


def _other_pipeline(reason: str) -> UsageError:
    return UsageError(
        f"Grain cannot go to the saved position: {reason.rstrip('.')}",
        remedy="read the same source with the same sampler, transformations and number of workers as before, or start "
        "a new run",
    )


_ENDLESS = 2**48
"""A dataset of so many elements is one that repeats for ever: Grain says so by its largest number, or a part of it."""


def _last_step(source: Any) -> Any:
    """Returns the last step of a pipeline: of a `DataLoader` that of the dataset which it makes."""
    return getattr(source, "_dataset", source)


def _steps(node: Any) -> Iterator[Any]:
    """Yields a step and all that come before it."""
    yield node
    for before in _before(node):
        yield from _steps(before)


def _is_sparse(dataset: Any) -> bool:
    """Whether some of a `MapDataset`'s indices lead to no element, so that its length is only an upper bound."""
    return any(type(step).__name__ in ("FilterMapDataset", "FlatMapMapDataset") for step in _steps(dataset))


def _is_endless(node: Any) -> bool:
    """Whether a pipeline repeats itself for ever."""
    if hasattr(node, "__len__"):
        return len(node) >= _ENDLESS
    kind = type(node).__name__
    if kind == "LimitIterDataset":
        return False
    if kind == "RepeatIterDataset" and getattr(node, "_num_epochs", 1) is None:
        return True
    before = _before(node)
    return bool(before) and all(map(_is_endless, before))


def _has_operations(node: Any) -> bool:
    """Whether a `DataLoader` has an operation of the old kind, a function over the whole iterator."""
    return any(type(step).__name__ == "_OperationIterDataset" for step in _steps(node))


def _end_workers_with_run(node: Any) -> None:
    """Lets worker processes end with the run: Grain's own would stay forever after it was killed."""
    for step in _steps(node):
        started = getattr(step, "_worker_init_fn", None)
        if type(step).__name__ == "ProcessPrefetchIterDataset" and not isinstance(started, _WorkerStart):
            step._worker_init_fn = _WorkerStart(started)


class _WorkerStart:
    """What a worker does first."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def __call__(self) -> None:
        end_with_parent()
        if self._then is not None:
            self._then()


def _before(node: Any) -> list[Any]:
    inside = getattr(node, "_datasets", ())  # an interleave does not call them its parents
    return [*getattr(node, "parents", ()), *(inside if isinstance(inside, (list, tuple)) else ())]
