"""The data of a run: loader, augmentor and preprocessor joined, for training and for evaluation."""

import collections
import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import Any, Literal

from everstep.components.building import Components
from everstep.components.rows import exactly, without_end
from everstep.components.tf_datasets import RUNS_OVER, is_dataset, one_pass, runs_over
from everstep.data import nest
from everstep.data.iterables import IterableStream, is_one_shot
from everstep.data.mapped import MappedStream
from everstep.data.stream import Stream
from everstep.data.tf_data import TFDataStream
from everstep.data.tf_pipeline import has_no_end
from everstep.errors import UsageError, kind_of

Split = Literal["training", "validation", "test"]


@dataclasses.dataclass(frozen=True)
class Flow:
    """The batches of one split.

    Attributes:
      split: Which.
      count: How many samples it has.
      n_iter: How many batches that are.
      batches: Yields them once, `(x, y)` or `(x, y, weights or ids)` in NumPy arrays, every sample once.
      stream: The same with a position, for training and the evaluations in it.
      with_samples: Yields the same batches, each with the inputs of its samples as the loader gave them; with None
        where they cannot be had.
      doubt: What may not be meant that way, in words; empty for nothing.
    """

    split: Split
    count: int
    n_iter: int
    batches: Callable[[], Iterator[tuple[Any, ...]]]
    stream: Stream
    with_samples: Callable[[], Iterator[tuple[tuple[Any, ...], list[Any] | None]]]
    doubt: str = ""


def make_flow(components: Components, split: Split) -> Flow:
    """Joins the components to the data of a split.

    A Python generator is made here to see what it is, and again for every pass: it cannot be read twice.

    Raises:
      UsageError: They do not fit together; one line with the key, the file and the reason.
    """
    made = _make(components, split)
    if is_dataset(made.batches):
        return _of_dataset(components, split, made)
    what = described(components, split)

    def read(again: _Made) -> Iterator[tuple[Any, ...]]:
        with components.calling("data_loader", f"create_{split}_generator"):
            yield from _watched(components, split, exactly(again.batches, again.count, again.n_iter, what))

    def one_epoch() -> Iterator[tuple[Any, ...]]:
        return read(_make(components, split))

    def with_samples() -> Iterator[tuple[tuple[Any, ...], list[Any] | None]]:
        again = _make(components, split, keep=True)
        return _joined(read(again), again.loaded)

    stream = GeneratedStream(one_epoch, made.n_iter, repeat=split == "training", seed=components.config.seed)
    return Flow(split, made.count, made.n_iter, one_epoch, stream, with_samples)


def _watched(components: Components, split: Split, batches: Iterator[Any]) -> Iterator[Any]:
    return components.validation_order.watch(batches) if split == "validation" else batches


def _joined(batches: Iterator[Any], loaded: Iterator[Any] | None) -> Iterator[tuple[Any, list[Any] | None]]:
    """Yields batches with the inputs of as many samples; none from where a preprocessor has taken fewer or more."""
    for batch in batches:
        size = len(nest.flatten(batch[1])[0])
        samples = [] if loaded is None else [sample[0] for sample in itertools.islice(loaded, size)]
        loaded = loaded if len(samples) == size else None
        yield batch, samples if loaded is not None else None


def _passing(samples: Iterator[Any], passed: collections.deque[Any]) -> Iterator[Any]:
    """Yields samples, and notes those that have passed."""
    for sample in samples:
        passed.append(sample)
        yield sample


def _taken(passed: collections.deque[Any]) -> Iterator[Any]:
    while passed:
        yield passed.popleft()


class GeneratedStream(IterableStream):
    """A generator function that is known to yield so many batches each time.

    Args:
      source: The function.
      batches: How many.
      repeat: Whether epoch follows epoch without end.
      seed: With the epoch, sets the random generators of Python and NumPy for the function.
    """

    def __init__(self, source: Callable[[], Iterator[Any]], batches: int, *, repeat: bool, seed: int) -> None:
        super().__init__(source, repeat=repeat, seed=seed)
        self._batches_per_epoch = batches


class BlamedStream(MappedStream):
    """The batches of another stream; what fails while they are read is the project's, and one line says so.

    Args:
      stream: The other.
      calling: Makes the block in which it is read.
      announced: How many samples and how many batches a pass has to have; None where passes have no end.
      what: Whose they are, for messages.
    """

    def __init__(
        self,
        stream: Stream,
        calling: Callable[[], contextlib.AbstractContextManager[None]],
        announced: tuple[int, int] | None = None,
        what: str = "",
    ) -> None:
        super().__init__(stream, lambda batch: batch)
        self._calling, self._announced, self._what = calling, announced, what

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        """Returns the other stream's batches; a dataset whose size nobody knew before is counted on the way.

        Raises:
          UsageError: A pass has fewer or more than announced: epochs would run into each other.
        """
        with self._calling():
            if self._announced is None:
                yield from super().open(epoch, batch)
            else:
                yield from self._counted(super().open(epoch, batch), batch, *self._announced)

    def _counted(self, batches: Iterator[Any], begin: int, count: int, n_iter: int) -> Iterator[Any]:
        """Yields batches of a pass from one on; samples are counted where it is the first."""
        number, rows = begin, 0
        for number, item in enumerate(batches, start=begin + 1):
            rows += len(nest.flatten(item)[0])
            if number > n_iter:
                break
            yield item
        if number != n_iter:
            raise self._wrong(f"{n_iter} batches", "more" if number > n_iter else f"{number}")
        if begin == 0 and rows != count:
            raise self._wrong(f"{count} samples", f"{rows}")

    def _wrong(self, announced: str, found: str) -> UsageError:
        return UsageError(
            f"{self._what}: {announced} were announced for a pass, but the dataset has {found}: return the number of "
            "samples there is, let batchify return that by the batch size, rounded up, and end a pass after them"
        )


@dataclasses.dataclass(frozen=True)
class _Made:
    batches: Any
    count: int
    n_iter: int
    samples: Any
    loaded: Iterator[Any] | None = None


def _of_dataset(components: Components, split: Split, made: _Made) -> Flow:
    dataset, what = one_pass(made.batches), described(components, split)
    if split == "training" and (size := int(dataset.cardinality())) >= 0 and size != made.n_iter:
        raise UsageError(
            f"{what}: batchify announced {made.n_iter} batches for {made.count} samples, but the dataset has {size}: "
            "return the samples by the batch size, rounded up, and leave no batch out"
        )

    def batches() -> Iterator[tuple[Any, ...]]:
        with components.calling("data_loader", f"create_{split}_generator"):
            found = exactly(dataset.as_numpy_iterator(), made.count, made.n_iter, what)
            yield from _watched(components, split, found)

    stream: Stream
    if split == "training":
        read = TFDataStream(dataset, repeat=not has_no_end(dataset))
        counted = None if has_no_end(dataset) else (made.count, made.n_iter)
        calling = functools.partial(components.calling, "data_loader", f"create_{split}_generator")
        stream = BlamedStream(read, calling, counted, what)
    else:
        stream = GeneratedStream(batches, made.n_iter, repeat=False, seed=components.config.seed)

    def with_samples() -> Iterator[tuple[tuple[Any, ...], list[Any] | None]]:
        return _joined(batches(), made.samples.as_numpy_iterator() if is_dataset(made.samples) else None)

    doubt = f"{what}: {RUNS_OVER}" if split == "training" and runs_over(dataset, made.count) else ""
    return Flow(split, made.count, made.n_iter, batches, stream, with_samples, doubt)


def load_samples(components: Components, split: Split) -> tuple[Any, int]:
    """Asks the loader for the samples of a split; returns them and how many it announces.

    Raises:
      UsageError: It fails, or returns something else.
    """
    method = f"create_{split}_generator"
    with components.calling("data_loader", method), components.naming("data_loader"):
        return _pair(getattr(components.data_loader, method)(), f"{method}()", "(samples, how many)")


def _make(components: Components, split: Split, keep: bool = False) -> _Made:
    """Calls loader, augmentor and preprocessor once; `keep` is for samples as they come from the loader."""
    samples, count = load_samples(components, split)
    given, loaded = samples, None
    if keep and is_one_shot(samples):
        passed = collections.deque[Any]()
        samples, loaded = _passing(samples, passed), _taken(passed)
    if is_one_shot(samples):
        samples = without_end(samples, count, described(components, split), components.config.get("batch_size"))
    with components.calling("augmentor" if components.augmentor else "preprocessor", "add_augmentation"):
        samples = augmented(components, split, samples)
    method = "add_test_preprocess" if split == "test" else "add_preprocess"
    with components.calling("preprocessor", method), components.naming("preprocessor"):
        made = getattr(components.preprocessor, method)(samples, count)
        batches, n_iter = _pair(made, f"{method}()", "(batches, how many)")
    return _Made(batches, count, n_iter, given, loaded)


def augmented(components: Components, split: Split, samples: Any) -> Any:
    """Returns samples augmented where the configuration asks for it, and as they are where it does not."""
    config, augmentor = components.config, components.augmentor
    if augmentor is not None and split == "training" and config.do_train_augmentation:
        return augmentor.add_augmentation(samples)
    if augmentor is not None and split == "validation" and config.do_validation_augmentation:
        return augmentor.add_validation_augmentation(samples)
    return samples


def _pair(returned: Any, who: str, wanted: str) -> tuple[Any, int]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UsageError(f"{who} returned {kind_of(returned)}, expected {wanted}")
    values, count = returned
    try:
        number = int(count)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or number != count:
        raise UsageError(f"{who} returned {wanted} with the number {count!r}, expected a whole number of at least 1")
    return values, number


def described(components: Components, split: Split) -> str:
    """Returns whose samples they are, for messages: split, key, class and file."""
    config = components.config
    return f"{split} data (data_loader_class: {config.data_loader_class}, from {config.place('data_loader_class')})"
