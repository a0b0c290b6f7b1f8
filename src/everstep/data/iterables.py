"""Python generators and iterables: read in order, resumed by reading them again."""

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from everstep.data import nest, sparse
from everstep.data.names import class_names
from everstep.data.randomness import BorrowedRandomness
from everstep.data.stream import Stream, skip
from everstep.errors import UsageError
from everstep.types import Batch

Source = Callable[[], Iterable[Any]] | Iterable[Any]


class IterableStream(Stream):
    """Batches from a generator function, an object that can be iterated again, or a one-shot iterator.

        def batches():
            for path in sorted(paths):
                yield load(path)

        stream = IterableStream(batches, repeat=True)

    Each epoch calls the function, or iterates the object, again. Resuming does the same and drops the batches that
    were already used. It is exact if the function yields the same batches whenever it is called for the same epoch.
    With `seed`, the generators behind `random` and `np.random` are set from (seed, epoch) while the function runs; a
    generator of its own must be created inside the function.

    A one-shot iterator, such as a generator object, can be read once: it neither repeats nor resumes.

    Args:
      source: The function, called without arguments, or the iterable.
      repeat: Whether epoch follows epoch without end.
      batch_size: None if the source yields batches. Otherwise it yields samples, which are stacked to batches of this
        size; the last batch of an epoch may be shorter.
      seed: With the epoch, sets the global random generators for the source; None does not change them.
      reads_on: Whether a one-shot iterator continues where it is when it is opened again, as for another evaluation.

    Raises:
      UsageError: A one-shot iterator cannot repeat, or the batch size is not positive.
    """

    def __init__(
        self,
        source: Source,
        *,
        repeat: bool = False,
        batch_size: int | None = None,
        seed: int | None = None,
        reads_on: bool = False,
    ):
        if batch_size is not None and batch_size < 1:
            raise UsageError("must be at least 1", key="batch_size", received=batch_size)
        self._source, self._batch_size, self._seed = source, batch_size, seed
        self._one_shot = is_one_shot(source)
        self._started, self._reads_on = False, reads_on
        if self._one_shot and repeat:
            raise self._cannot("repeat")
        super().__init__(repeat=repeat, batches_per_epoch=_count(source, batch_size))

    @property
    def classes(self) -> list[str]:
        """The names of the classes that the source has, or the dataset of a PyTorch DataLoader."""
        return class_names(self._source)

    @property
    def is_single_pass(self) -> bool:
        """Whether the source is a one-shot iterator."""
        return self._one_shot

    @property
    def why_not_exact(self) -> str:
        """A one-shot iterator cannot be read again, a DataLoader's order is not saved; see `Stream.why_not_exact`."""
        if self._one_shot:
            return str(self._cannot("go back or resume"))
        if _is_shuffling_data_loader(self._source):
            return (
                "a PyTorch DataLoader draws its order from a generator of its own, which is not saved: pass its "
                "dataset instead, which is shuffled here"
            )
        return ""

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on; reads and drops those before it."""
        if self._one_shot and ((self._started and not self._reads_on) or (epoch, batch) != (0, 0)):
            raise self._cannot("go back or resume")
        self._started = True
        batches = self._draw(epoch)
        skip(batches, batch, batch)
        return batches

    def _draw(self, epoch: int) -> Iterator[Batch]:
        """Yields one epoch; the source's code runs with the epoch's random state."""
        random = contextlib.nullcontext() if self._seed is None else BorrowedRandomness(self._seed, epoch)
        with random:
            items = iter(self._source()) if callable(self._source) else iter(self._source)
        batches = map(_as_batch, items) if self._batch_size is None else _stacked(items, self._batch_size)
        end = object()
        while True:
            with random:
                batch = next(batches, end)
            if batch is end:
                return
            yield batch

    def _cannot(self, act: str) -> UsageError:
        return UsageError(
            f"a one-shot {type(self._source).__name__} can be read only once, so it cannot {act}",
            remedy="pass the function that returns it instead, such as `lambda: make_batches()`",
        )


def is_one_shot(source: Any) -> bool:
    """Whether the source is an iterator, which can be read only once."""
    return isinstance(source, Iterator) and not isinstance(source, Stream)


def _is_shuffling_data_loader(source: Any) -> bool:
    """Whether the source is a `torch.utils.data.DataLoader` whose order is not that of its dataset."""
    classes = {(cls.__module__.rpartition(".")[0], cls.__name__) for cls in type(source).__mro__}
    if ("torch.utils.data", "DataLoader") not in classes:
        return False
    return type(getattr(source, "sampler", None)).__name__ != "SequentialSampler"


def _count(source: Any, batch_size: int | None) -> int | None:
    """Returns the number of batches of a sequence; of other iterables `len` may not be reliable."""
    if not isinstance(source, (list, tuple)):
        return None
    return -(-len(source) // (batch_size or 1))


def _stacked(samples: Iterator[Any], batch_size: int) -> Iterator[Batch]:
    while chunk := list(itertools.islice(samples, batch_size)):
        yield nest.stack(chunk)


def _as_batch(item: Any) -> Batch:
    batch = nest.map_leaves(sparse.on_host, item)
    for path, leaf in nest.walk(batch):
        if leaf.ndim == 0:
            raise UsageError(
                f"expected a batch from the source, not a single value{path and f' at {path}'}",
                received=leaf.item(),
                remedy="yield whole batches, or use IterableStream(source, batch_size=…) to stack samples",
            )
    return batch
