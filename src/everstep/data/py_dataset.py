"""`keras.utils.PyDataset`: batches by index, with the dataset's epoch hooks and workers."""

import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from everstep.data import nest, randomness, sparse
from everstep.data.names import class_names
from everstep.data.stream import EmptyDataError, Stream
from everstep.data.worker_processes import Processes
from everstep.data.workers import Threads, Workers, why_no_processes
from everstep.errors import UsageError
from everstep.types import Batch

logger = logging.getLogger(__name__)


class PyDatasetStream(Stream):
    """Batches of a `PyDataset`.

        stream = PyDatasetStream(dataset, shuffle=True, seed=0, repeat=True)

    The order of the batches of an epoch is a permutation that follows from (seed, epoch), so any position in it is
    found without computing what comes before it. A resumed run calls `on_epoch_begin` and `on_epoch_end` for the epochs
    before, so that the dataset is in the same state. `random` and `np.random` are set from seed, epoch and batch while
    the dataset's code runs.

    `workers` batches are computed at once, at most `max_queue_size` ahead, in threads, or with `use_multiprocessing` in
    processes, if the program can start any; their order and their random numbers do not change. Threads share the
    global random generators: if the first batch draws from them, the batches are computed one after the other.

    Args:
      dataset: The dataset; it is infinite and has no epochs if its `num_batches` is None.
      shuffle: Whether each epoch has its own order.
      seed: With the epoch, determines that order.
      repeat: Whether epoch follows epoch without end.

    Raises:
      UsageError: The dataset has no number of batches, or no batches.
    """

    def __init__(self, dataset: Any, *, shuffle: bool = False, seed: int = 0, repeat: bool = False):
        self._dataset, self._shuffle, self._seed = dataset, shuffle, seed
        self._count = _num_batches(dataset)
        self._hooks = _Hooks(dataset, seed)
        self._sequential = dataset.workers < 1 or (dataset.workers < 2 and not dataset.use_multiprocessing)
        self._processes: Processes | None = None
        self._only_threads = self._has_grown = False
        if dataset.use_multiprocessing and not self._sequential and (reason := why_no_processes(dataset)):
            self._only_threads = True
            logger.warning("%s uses threads instead of processes: %s", type(dataset).__name__, reason)
        super().__init__(repeat=repeat, batches_per_epoch=self._count)

    @property
    def classes(self) -> list[str]:
        """The dataset's `class_names` or `classes`, where it has one of them."""
        return class_names(self._dataset)

    @property
    def epoch_never_ends(self) -> bool:
        """Whether the dataset is infinite."""
        return self._count is None

    @property
    def why_not_exact(self) -> str:
        """A dataset for evaluation does not know how often it was read before; see `Stream.why_not_exact`."""
        if self.repeat or not self._hooks.any:
            return ""
        return (
            f"{type(self._dataset).__name__} may change itself at each evaluation (on_epoch_begin or on_epoch_end), "
            "and a resumed run starts with a new one: remove the method from the dataset for evaluation"
        )

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on, after the dataset's hooks were called up to that epoch."""
        if batch == self._count and self._hooks.has_ended(epoch):
            return
        self._hooks.advance_to(epoch, again=not self.repeat and batch == 0)
        self._check_count(epoch)
        for value in self._compute(epoch, self._numbers(epoch, batch)):
            yield _as_batch(value)
        self._hooks.end(epoch)

    def _numbers(self, epoch: int, batch: int) -> Iterable[tuple[int, int]]:
        """Returns the remaining batches: each with its place in the epoch, and its number in the dataset."""
        if self._count is None:
            return zip(itertools.count(batch), itertools.count(batch), strict=False)
        places = range(self._count)
        order = randomness.generator(self._seed, epoch).permutation(self._count).tolist() if self._shuffle else places
        return list(zip(places, order, strict=True))[batch:]

    def _compute(self, epoch: int, numbers: Iterable[tuple[int, int]]) -> Iterator[Any]:
        if self._sequential:
            return self._one_by_one(epoch, numbers)
        if self._dataset.use_multiprocessing and not self._only_threads:
            return self._workers_of(epoch).map(numbers)
        return self._in_threads(epoch, iter(numbers))

    def _one_by_one(self, epoch: int, numbers: Iterable[tuple[int, int]]) -> Iterator[Any]:
        for place, number in numbers:
            with randomness.for_batch(self._seed, epoch, place):
                value = self._dataset[number]
            yield value

    def _in_threads(self, epoch: int, numbers: Iterator[tuple[int, int]]) -> Iterator[Any]:
        """Computes the first batch in this thread, to see if it draws random numbers, and the others in threads."""
        drawn = randomness.DrawDetector()
        for place, number in itertools.islice(numbers, 1):
            with randomness.for_batch(self._seed, epoch, place), drawn:
                value = self._dataset[number]
            yield value
        if drawn.any:
            logger.warning(
                "%s draws from random or np.random, which its %d threads share: batches are computed one by one, so "
                "that a resumed run draws the same numbers; use np.random.default_rng(index), or "
                "use_multiprocessing=True",
                type(self._dataset).__name__,
                self._dataset.workers,
            )
            self._sequential = True
            yield from self._one_by_one(epoch, numbers)
        else:
            yield from Threads(self._dataset, self._dataset.workers, self._dataset.max_queue_size).map(numbers)

    def _workers_of(self, epoch: int) -> Workers:
        """Returns the worker processes, restarted if the dataset may have changed since they were started."""
        if self._processes is not None and (self._hooks.any or self._processes.broken):
            self._processes.close()
            self._processes = None
        if self._processes is None:
            dataset = self._dataset
            self._processes = Processes(dataset, dataset.workers, dataset.max_queue_size)
        self._processes.draw_for(self._seed, epoch)
        return self._processes

    def _check_count(self, epoch: int) -> None:
        """Requires that an epoch has its batches; of a dataset that has grown, only so many are read, as in Keras."""
        now, name = _num_batches(self._dataset), type(self._dataset).__name__
        if now == self._count:
            return
        if now is None or self._count is None or now < self._count:
            raise UsageError(
                f"{name} has {now} batches in epoch {epoch} and had {self._count} when the run started",
                remedy="an epoch must not get shorter, so that a resumed run finds its place: keep the number the same "
                "in every epoch, or return None for an infinite dataset",
            )
        if not self._has_grown:
            self._has_grown = True
            logger.warning("%s has grown to %d batches: an epoch still has %d, as in Keras", name, now, self._count)


class _Hooks:
    """The dataset's `on_epoch_begin` and `on_epoch_end`, each called once per epoch, in order."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset, self._seed = dataset, seed
        self._begun = self._ended = 0  # epochs
        self.any = any(_is_own(dataset, name) for name in ("on_epoch_begin", "on_epoch_end"))

    def advance_to(self, epoch: int, again: bool) -> None:
        """Makes all calls up to the start of an epoch that were not made yet.

        Args:
          epoch: The epoch that starts.
          again: Whether an epoch that has ended may start again, as for an evaluation.

        Raises:
          UsageError: The dataset is past that epoch, and cannot go back.
        """
        if self.has_ended(epoch) and (again or not self.any):
            self._begun = self._ended = epoch
        if self.has_ended(epoch):
            raise UsageError(
                f"{type(self._dataset).__name__} may change itself in on_epoch_begin or on_epoch_end, so it cannot go "
                "back to an earlier epoch in the same process",
                remedy="run again to resume",
            )
        while self._ended < epoch:
            self._begin(self._ended)
            self.end(self._ended)
        self._begin(epoch)

    def has_ended(self, epoch: int) -> bool:
        """Whether `on_epoch_end` was called for an epoch."""
        return self._ended > epoch

    def end(self, epoch: int) -> None:
        """Calls `on_epoch_end`, unless it was already called for this epoch."""
        if self._ended == epoch:
            with randomness.for_hook(self._seed, epoch, 1):
                self._dataset.on_epoch_end()
            self._ended += 1

    def _begin(self, epoch: int) -> None:
        if self._begun == epoch:
            with randomness.for_hook(self._seed, epoch, 0):
                self._dataset.on_epoch_begin()
            self._begun += 1


def _is_own(dataset: Any, name: str) -> bool:
    """Whether the dataset's class overrides a method of `PyDataset`."""
    base = next(kind for kind in type(dataset).__mro__ if kind.__name__ == "PyDataset")
    return getattr(type(dataset), name) is not getattr(base, name)


def _num_batches(dataset: Any) -> int | None:
    name = type(dataset).__name__
    try:
        count = dataset.num_batches
    except NotImplementedError as error:
        raise UsageError(
            f"{name} has no number of batches", remedy="add __len__, or a property num_batches (None if infinite)"
        ) from error
    if count is not None and count < 1:
        raise EmptyDataError(f"{name} has {count} batches", remedy="a dataset needs at least one batch")
    return count


def _as_batch(value: Any) -> Batch:
    """Returns a copy of a batch: it may be a view of arrays that the dataset shuffles in place at the epoch's end."""
    batch = nest.map_leaves(
        lambda leaf: sparse.on_host(leaf) if sparse.is_sparse_or_ragged(leaf) else np.array(leaf),
        tuple(value) if isinstance(value, list) else value,
    )
    for path, leaf in nest.walk(batch):
        if leaf.ndim == 0:
            raise UsageError(
                f"expected a batch from the PyDataset, not a single value{path and f' at {path}'}",
                received=leaf.item(),
                remedy="return whole batches from __getitem__",
            )
    return batch
