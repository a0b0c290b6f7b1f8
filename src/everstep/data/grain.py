"""Grain: `DataLoader`, `MapDataset` and `IterDataset`, resumed by Grain's own state.

The second half of this file inspects the steps of a pipeline without reading from it. Grain's `parents` are public; the
arguments of a step are not, so a missing attribute is never an error.
"""

import functools
import importlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from absl import flags

from everstep.data import nest, sparse
from everstep.data.names import class_names
from everstep.data.stream import OwnRows, Part, Stream, skip
from everstep.data.workers import Threads, end_with_parent
from everstep.errors import UsageError
from everstep.types import Batch

_AHEAD = 8  # batches of a MapDataset computed ahead, each by a thread
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class GrainStream(Stream):
    """Batches of a Grain pipeline, with its worker processes if it has any.

        dataset = grain.MapDataset.source(records).seed(1).shuffle().map(decode).batch(32)
        stream = GrainStream(dataset, repeat=True)

    Grain's iterators have a state. It is saved beside epoch and batch, as the bookmark, and a resumed run continues
    from it without reading what comes before. Without a bookmark, a `MapDataset` is read from the batch's index, and
    other pipelines are read from the start, dropping the batches before.

    An epoch ends where the pipeline ends. The next epoch of a `MapDataset` has the indices after those of the previous
    one, so Grain shuffles and draws differently, as with `repeat`. A `DataLoader` and an `IterDataset` start again, and
    all epochs are the same; a sampler with `num_epochs=None`, or `repeat()` before `to_iter_dataset()`, gives one
    endless pass in which every round has its own order.

    Elements in which some leaf has no axis are samples, and are stacked to batches.

    Args:
      source: The pipeline.
      batch_size: Samples per batch, if the pipeline yields samples.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of stacked samples is dropped.
    """

    def __init__(self, source: Any, *, batch_size: int = 32, repeat: bool = False, drop_remainder: bool = False):
        if batch_size < 1:
            raise UsageError("must be at least 1", key="global_batch_size", received=batch_size)
        if not flags.FLAGS.is_parsed():
            flags.FLAGS.mark_as_parsed()  # Grain reads some flags when it starts a worker
        self._source = source
        self._last_step = getattr(source, "_dataset", source)  # of a DataLoader, the dataset that it builds
        _end_workers_with_run(self._last_step)
        self._batch_size, self._drop_remainder = batch_size, drop_remainder
        self._epoch_never_ends = _is_endless(self._last_step)
        self._indexed = _Indexed.of(source, batch_size, drop_remainder)
        self._pass: _Pass | None = None
        self._next_index: int | None = None  # of the next element, where only some rows are read
        super().__init__(repeat=repeat, batches_per_epoch=self._indexed.batches if self._indexed else None)

    @property
    def classes(self) -> list[str]:
        """The pipeline's `class_names`, as Keras's loaders set them with `format="grain"`."""
        return class_names(self._source)

    @property
    def epoch_never_ends(self) -> bool:
        """Whether the pipeline repeats itself."""
        return self._epoch_never_ends

    @property
    def why_not_exact(self) -> str:
        """What makes Grain's own state inexact; see `Stream.why_not_exact`."""
        if all(type(step).__name__ != "_OperationIterDataset" for step in _steps(self._last_step)):
            return ""
        return (
            "the grain.DataLoader has an operation over the whole iterator, whose state Grain does not save: use "
            "transformations of single elements (grain.transforms), or grain.MapDataset"
        )

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on, by index if the source has indices."""
        opened = self._start(epoch)
        index = self._indexed.index(batch) if self._indexed else None
        if index is None:
            skip(opened, batch, batch)
        elif index > 0:
            opened.restore({"next_index": index})
        return opened

    def open_at(self, epoch: int, batch: int, bookmark: Any) -> Iterator[Batch]:
        """Returns the epoch's batches from Grain's saved state on."""
        opened = self._start(epoch)
        opened.restore(bookmark)
        return opened

    @property
    def reads_rows(self) -> bool:
        """Whether samples have indices: in a `MapDataset` of samples, or one with `batch` as its last step."""
        return self._indexed is not None and self._indexed.samples is not None

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Yields these rows of the epoch's batches from that batch on, which threads compute ahead, as Grain does."""
        indexed = self._indexed
        if indexed is None or indexed.samples is None:
            raise ValueError("the pipeline has no samples by index")
        if self._pass is not None:
            self._pass.close()
            self._pass = None
        numbers = ((number, number) for number in range(batch, indexed.last))
        parts = Threads(_RowsOfBatches(indexed.samples, epoch, rows), _AHEAD, _AHEAD).map(numbers)
        for number, part in enumerate(parts, start=batch):
            self._next_index = indexed.index(number + 1)
            yield part

    def bookmark(self) -> Any:
        """Returns Grain's state; where only some rows are read, the one that Grain would have."""
        if self._next_index is not None:
            return {"next_index": self._next_index}
        return None if self._pass is None else self._pass.state()

    def _start(self, epoch: int) -> "_Pass":
        if self._pass is not None:
            self._pass.close()
        self._next_index = None
        elements = self._indexed.elements(epoch) if self._indexed else self._source
        self._pass = _Pass(iter(elements), self._batch_size, self._drop_remainder)
        return self._pass


class _Indexed:
    """A `MapDataset`, in which every element of every epoch has an index."""

    def __init__(self, dataset: Any, batch_size: int, drop_remainder: bool) -> None:
        self._dataset, self._size = dataset, len(dataset)
        # Some indices of a filtered dataset have no element: its length is only an upper bound.
        self._sparse = any(type(step).__name__ in ("FilterMapDataset", "FlatMapMapDataset") for step in _steps(dataset))
        self._endless = _is_endless(dataset)
        self._has_samples = self._finds_samples()
        self._each = batch_size if self._has_samples else 1
        full, rest = divmod(self._size, self._each)
        self.last = full + (rest > 0 and not drop_remainder)
        """The number of batches, if each index has an element."""
        self.batches = None if self._sparse or self._endless else self.last
        self.samples = None if self._sparse else self._find_samples(batch_size)
        """The samples of which batches consist, by index; None if there are only batches."""

    @classmethod
    def of(cls, source: Any, batch_size: int, drop_remainder: bool) -> "_Indexed | None":
        """Returns the source with its indices; None if it has none."""
        is_map_dataset = hasattr(source, "__getitem__") and hasattr(source, "to_iter_dataset")
        return cls(source, batch_size, drop_remainder) if is_map_dataset else None

    def index(self, batch: int) -> int | None:
        """Returns the index of a batch's first element; None if it is not known."""
        return None if self._sparse else min(batch * self._each, self._size)

    def elements(self, epoch: int) -> Any:
        """Returns the elements of an epoch."""
        if epoch == 0 or self._endless:
            return self._dataset.to_iter_dataset(self._options())
        here = slice(epoch * self._size, (epoch + 1) * self._size)
        return self._dataset.repeat()[here].to_iter_dataset(self._options())

    def _options(self) -> Any:
        """Returns how much Grain prefetches: its default of 500 elements suits samples, not batches."""
        if self._has_samples:
            return None
        return importlib.import_module("grain").ReadOptions(num_threads=_AHEAD, prefetch_buffer_size=_AHEAD)

    def _find_samples(self, batch_size: int) -> "_Samples | None":
        if self._has_samples:
            return _Samples(self._dataset, batch_size, nest.stack)
        step = self._dataset
        stack: Any = getattr(step, "_batch_fn", None)
        if type(step).__name__ != "BatchMapDataset" or getattr(stack, "__name__", "") != "make_batch":
            return None  # a function of the user may need the whole batch
        (parent,) = step.parents
        return _Samples(parent, step._batch_size, stack)

    def _finds_samples(self) -> bool:
        elements = (self._dataset[index] for index in range(self._size))
        first = next((element for element in elements if element is not None), None)
        return first is not None and _is_sample(first)


class _Samples:
    """The samples of a `MapDataset` by index, and how they become batches."""

    def __init__(self, dataset: Any, batch_size: int, stack: Callable[[list[Any]], Any]) -> None:
        self._dataset, self._size, self._batch_size, self._stack = dataset, len(dataset), batch_size, stack

    def indices(self, epoch: int, batch: int) -> range:
        """Returns the indices of the samples of a batch."""
        begin, end = batch * self._batch_size, min((batch + 1) * self._batch_size, self._size)
        return range(epoch * self._size + begin, epoch * self._size + end)

    def read(self, indices: Sequence[int]) -> Batch:
        """Returns some samples, stacked."""
        return nest.map_leaves(sparse.on_host, self._stack([self._dataset[index] for index in indices]))


class _RowsOfBatches:
    """Some rows of each batch of an epoch, by the number of the batch."""

    def __init__(self, samples: _Samples, epoch: int, rows: OwnRows) -> None:
        self._samples, self._epoch, self._rows = samples, epoch, rows
        self._form: Any = None

    def __getitem__(self, number: int) -> Part:
        indices = self._samples.indices(self._epoch, number)
        own = self._rows(len(indices))
        part = self._samples.read(indices[own])
        if (form := nest.form(part)) != self._form:  # all samples of the batch have it, or there is an error
            part = nest.map_leaves(lambda leaf: leaf[own], self._samples.read(indices))
            self._form = form
        return Part(part, len(indices))


class _Pass(Iterator[Batch]):
    """One pass over a pipeline, as batches."""

    def __init__(self, elements: Any, batch_size: int, drop_remainder: bool) -> None:
        self._elements, self._batch_size, self._drop_remainder = elements, batch_size, drop_remainder
        self._batches: Iterator[Batch] | None = None

    def __next__(self) -> Batch:
        if self._batches is None:
            first = next(self._elements)
            every = itertools.chain([first], self._elements)
            if _is_sample(first):
                self._batches = self._stack(every)
            else:
                self._batches = map(functools.partial(nest.map_leaves, sparse.on_host), every)
        return next(self._batches)

    def state(self) -> Any:
        """Returns Grain's state, without memory addresses, which differ in the next process."""
        state = self._elements.get_state()
        text = state.decode() if isinstance(state, bytes) else json.dumps(state)
        return json.loads(_ADDRESS.sub("", text))

    def restore(self, state: Any) -> None:
        """Continues from where `state` was returned.

        Raises:
          UsageError: The state is that of another pipeline.
        """
        if list(_cycles(state)) != list(_cycles(self.state())):
            raise _other_pipeline("the number of workers, or of datasets read in turn, has changed")
        try:
            self._set_state(state)
        except (ValueError, IndexError, KeyError, TypeError) as error:
            raise _other_pipeline(str(error).splitlines()[0] if str(error) else type(error).__name__) from error

    def close(self) -> None:
        """Stops the workers."""
        close = getattr(self._elements, "close", None)
        self._elements = None  # a DataLoader's iterator stops them when it is garbage-collected
        self._batches = None
        if close is not None:
            close()

    def _set_state(self, state: Any) -> None:
        own = self._elements.get_state()
        if not isinstance(own, bytes):
            self._elements.set_state(state)
            return
        # Grain compares the repr of sampler and source, which often contains a memory address: keep this process's.
        texts = {key: text for key, text in json.loads(own).items() if isinstance(text, str)}
        same = {key: text for key, text in texts.items() if _ADDRESS.sub("", text) == state.get(key)}
        self._elements.set_state(json.dumps({**state, **same}).encode())

    def _stack(self, samples: Iterator[Any]) -> Iterator[Batch]:
        while chunk := list(itertools.islice(samples, self._batch_size)):
            if len(chunk) < self._batch_size and self._drop_remainder:
                return
            yield nest.stack(chunk)


def _is_sample(element: Any) -> bool:
    """Whether some leaf has no axis: then the element is a sample, not a batch."""
    return any(np.ndim(leaf) == 0 for leaf in nest.flatten(element))


def _cycles(state: Any) -> Iterator[int]:
    """Yields the number of iterators of each interleave in a state: Grain does not compare it."""
    if isinstance(state, dict):
        if isinstance(state.get("iterators_in_use_indices"), list):
            yield len(state["iterators_in_use_indices"])
        state = list(state.values())
    if isinstance(state, list):
        for part in state:
            yield from _cycles(part)


def _other_pipeline(reason: str) -> UsageError:
    return UsageError(
        f"Grain cannot restore the saved position: {reason.rstrip('.')}",
        remedy="read the same source with the same sampler, transformations and number of workers as before, or start "
        "a new run",
    )


_ENDLESS = 2**48
"""A dataset with this many elements is endless: Grain gives it its largest number as the length, or a part of that."""


def _steps(node: Any) -> Iterator[Any]:
    """Yields a step of a pipeline and all steps before it."""
    yield node
    for before in _before(node):
        yield from _steps(before)


def _is_endless(node: Any) -> bool:
    """Whether a pipeline repeats itself without end."""
    if hasattr(node, "__len__"):
        return len(node) >= _ENDLESS
    kind = type(node).__name__
    if kind == "LimitIterDataset":
        return False
    if kind == "RepeatIterDataset" and getattr(node, "_num_epochs", 1) is None:
        return True
    before = _before(node)
    return bool(before) and all(map(_is_endless, before))


def _end_workers_with_run(node: Any) -> None:
    """Makes worker processes end with the run: otherwise Grain's would stay forever after the run is killed."""
    for step in _steps(node):
        init_fn = getattr(step, "_worker_init_fn", None)
        if type(step).__name__ == "ProcessPrefetchIterDataset" and not isinstance(init_fn, _WorkerInit):
            step._worker_init_fn = _WorkerInit(init_fn)


class _WorkerInit:
    """Called first in each worker process; calls the user's own function, too."""

    def __init__(self, init_fn: Any) -> None:
        self._init_fn = init_fn

    def __call__(self) -> None:
        end_with_parent()
        if self._init_fn is not None:
            self._init_fn()


def _before(node: Any) -> list[Any]:
    inside = getattr(node, "_datasets", ())  # an interleave does not list them in `parents`
    return [*getattr(node, "parents", ()), *(inside if isinstance(inside, (list, tuple)) else ())]
