"""`DataSplit`: loader, augmentor and preprocessor joined to the batches of one split.

A loader announces n samples; every pass over a split has exactly those n, each once, whatever datasets and generators
do at their end. Generators are padded behind their last sample and cut again behind the preprocessor; datasets lose
their endless `repeat()` and are counted while they are read.
"""

import collections
import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any, Literal

import keras
import numpy as np

from everstep.data import (
    IterableStream,
    MappedStream,
    Stream,
    TFDataStream,
    is_one_shot,
    load_tensorflow,
    nest,
    tf_data,
)
from everstep.errors import Problem, UsageError, kind_of
from everstep.projects.components.base_classes import PreprocessorBase
from everstep.projects.components.building import Components

SplitName = Literal["training", "validation", "test"]

_PADDING = 4096  # samples that may be read beyond the end: the rest of a last batch, or prefetched ones
_SINGLE = "batchify returned single samples, not batches"
_BUILD = "return dataset.batch(size), or yield tuple(map(np.array, zip(*samples)))"
_ROUNDED_UP = "return samples divided by the batch size, rounded up, and drop no batch"


@dataclasses.dataclass(frozen=True)
class DataSplit:
    """The batches of one split.

    Attributes:
      name: Which split.
      count: How many samples it has.
      n_iter: How many batches.
      batches: Yields them once, `(x, y)` or `(x, y, weights or ids)` in NumPy arrays, every sample once.
      stream: The same with a position, for training and the evaluations in it.
      with_samples: Yields the same batches, each with the inputs of its samples as the loader returned them, or with
        None where those are not available.
      warning: What is probably not intended; empty for nothing.
    """

    name: SplitName
    count: int
    n_iter: int
    batches: Callable[[], Iterator[tuple[Any, ...]]]
    stream: Stream
    with_samples: Callable[[], Iterator[tuple[tuple[Any, ...], list[Any] | None]]]
    warning: str = ""


def create_split(components: Components, name: SplitName) -> DataSplit:
    """Joins the components to the data of a split.

    A Python generator is created here to see what it is, and again for every pass: it cannot be read twice.

    Raises:
      UsageError: The components do not fit together; names the key, the file and the reason.
    """
    pipeline = _pipeline(components, name)
    if is_dataset(pipeline.batches):
        return _dataset_split(components, name, pipeline)

    def read(again: _Pipeline) -> Iterator[tuple[Any, ...]]:
        with _reading(components, name, again):
            batches = exactly(again.batches, again.count, again.n_iter, f"{name} data")
            yield from _compared(components, name, batches)

    def one_pass() -> Iterator[tuple[Any, ...]]:
        return read(_pipeline(components, name))

    def with_samples() -> Iterator[tuple[tuple[Any, ...], list[Any] | None]]:
        again = _pipeline(components, name, keep=True)
        return _with_samples(read(again), again.loaded)

    stream = GeneratedStream(
        lambda: _valid(components, name, one_pass(), pipeline.count),
        pipeline.n_iter,
        repeat=name == "training",
        seed=components.config.seed,
    )
    return DataSplit(name, pipeline.count, pipeline.n_iter, one_pass, stream, with_samples)


def _dataset_split(components: Components, name: SplitName, pipeline: "_Pipeline") -> DataSplit:
    dataset, count, n_iter = _without_repeat(pipeline.batches), pipeline.count, pipeline.n_iter
    if tf_data.is_unbatched(dataset):
        with components.naming("preprocessor"):
            raise UsageError(f"{name} data: {_SINGLE}", remedy=_BUILD)
    endless = tf_data.is_infinite(dataset)

    def batches() -> Iterator[tuple[Any, ...]]:
        with _reading(components, name, pipeline):
            found = exactly(dataset.as_numpy_iterator(), count, n_iter, f"{name} data")
            yield from _compared(components, name, found)

    def with_samples() -> Iterator[tuple[tuple[Any, ...], list[Any] | None]]:
        samples = pipeline.samples.as_numpy_iterator() if is_dataset(pipeline.samples) else None
        return _with_samples(batches(), samples)

    stream: Stream
    warning = ""
    if name == "training":
        with _reading(components, name, pipeline):
            if (size := int(dataset.cardinality())) >= 0 and size != n_iter:
                found = f"batchify announced {n_iter} batches for {count} samples, but the dataset has {size}"
                raise NotAsAnnounced(f"training data: {found}", remedy=_ROUNDED_UP)
        if _repeats_before_batching(dataset, count):
            reason = (
                "training data: the dataset is batched after repeat(), so the last batch of an epoch contains samples "
                "of the next one, and some samples are not in every epoch"
            )
            problem = Problem("", reason, remedy="batch before you repeat")
            warning = str(components.named("data_loader", problem))
        read = TFDataStream(dataset, repeat=not endless)
        stream = CheckedLengthStream(read, components, pipeline, endless)
    else:
        seed = components.config.seed
        stream = GeneratedStream(lambda: _valid(components, name, batches(), count), n_iter, repeat=False, seed=seed)
    return DataSplit(name, count, n_iter, batches, stream, with_samples, warning)


def load_samples(components: Components, name: SplitName) -> tuple[Any, int]:
    """Returns the samples of a split from the loader, and how many it announces.

    Raises:
      UsageError: It fails, or returns something else.
    """
    method = f"create_{name}_generator"
    with components.calling("data_loader", method):
        return _pair(getattr(components.data_loader, method)(), f"{method}()", "(samples, how many)")


def augmented(components: Components, name: SplitName, samples: Any) -> Any:
    """Returns samples, augmented where the configuration requests it."""
    config, augmentor = components.config, components.augmentor
    if augmentor is not None and name == "training" and config.do_train_augmentation:
        return augmentor.add_augmentation(samples)
    if augmentor is not None and name == "validation" and config.do_validation_augmentation:
        return augmentor.add_validation_augmentation(samples)
    return samples


@dataclasses.dataclass(frozen=True)
class _Pipeline:
    """One call of loader, augmentor and preprocessor.

    Attributes:
      batches: What the preprocessor returned.
      count: How many samples the loader announced.
      n_iter: How many batches the preprocessor announced.
      samples: What the loader returned.
      loaded: The samples that have passed so far, where they are kept.
    """

    batches: Any
    count: int
    n_iter: int
    samples: Any
    loaded: Iterator[Any] | None = None

    @property
    def loader_keeps_its_word(self) -> bool:
        """Whether the loader is known to have the samples that it announced: what is missing was lost behind it."""
        if is_one_shot(self.samples):
            return True  # they are counted while they are read
        if is_dataset(self.samples):
            return int(self.samples.cardinality()) == self.count or tf_data.is_infinite(self.samples)
        return hasattr(self.samples, "__len__") and len(self.samples) >= self.count


def _pipeline(components: Components, name: SplitName, keep: bool = False) -> _Pipeline:
    samples, count = load_samples(components, name)
    given, loaded = samples, None
    if is_one_shot(samples):
        if keep:
            passed = collections.deque[Any]()
            samples, loaded = _remembering(samples, passed), _popped(passed)
        samples = _padded_split(components, name, samples, count)
    with components.calling("augmentor" if components.augmentor else "preprocessor", "add_augmentation"):
        samples = augmented(components, name, samples)
    method = "add_test_preprocess" if name == "test" else "add_preprocess"
    with components.calling("preprocessor", method):
        returned = getattr(components.preprocessor, method)(samples, count)
        batches, n_iter = _pair(returned, f"{method}()", "(batches, how many)")
    return _Pipeline(batches, count, n_iter, given, loaded)


def _padded_split(components: Components, name: SplitName, samples: Iterator[Any], count: int) -> Iterator[Any]:
    what = f"{name} data"
    with components.naming("data_loader"):  # although it is the preprocessor that reads them
        last = yield from counted(samples, count, what)
    yield from _padding(last, count, what, components.config.get("batch_size"))


def _pair(returned: Any, who: str, expected: str) -> tuple[Any, int]:
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise UsageError(f"must return {expected}, but returned {kind_of(returned)}", key=who)
    values, count = returned
    try:
        number = int(count)
    except (TypeError, ValueError):
        number = 0
    if number < 1 or number != count:
        raise UsageError(f"must return {expected}, a whole number of at least 1", key=who, received=count)
    return values, number


@contextlib.contextmanager
def _reading(components: Components, name: SplitName, pipeline: _Pipeline) -> Iterator[None]:
    """The block in which batches of a split are read; missing samples are blamed on the component that lost them."""
    with components.reading(name):
        try:
            yield
        except NotAsAnnounced:
            with components.naming("preprocessor" if pipeline.loader_keeps_its_word else "data_loader"):
                raise


def _valid(
    components: Components, name: SplitName, batches: Iterable[Any], count: int, begin: int = 0
) -> Iterator[Any]:
    """Yields batches of which each has valid weights, and the first training batch as many samples as configured.

    Args:
      components: The components that the batches come from.
      name: Which split.
      batches: The batches, from number `begin` on.
      count: How many samples the split has.
      begin: The number of the first batch.
    """
    batch_size = components.config.get("batch_size")
    for number, batch in enumerate(batches, start=begin):
        if name == "training" and number == 0 and batch_size is not None:
            with components.naming("preprocessor"):
                require_batch_size(len(nest.flatten(batch)[0]), batch_size, count, name)
        if name != "test" and isinstance(batch, tuple | list) and len(batch) == 3:
            for weights in nest.flatten(batch[2]):
                with components.naming(weighing(components)):
                    require_weights(weights, f"{name} batch {number}")
        yield batch


def weighing(components: Components) -> str:
    """Returns the component that the weights of batches come from."""
    methods = ("add_preprocess", "add_weight_preprocess", "weight_preprocess")
    cls = type(components.preprocessor)
    changes = any(getattr(cls, method) is not getattr(PreprocessorBase, method) for method in methods)
    return "preprocessor" if changes else "data_loader"


def require_batch_size(size: int, batch_size: int, count: int, name: SplitName) -> None:
    """Checks how many samples the first batch of a split has.

    Raises:
      UsageError: They are not as many as configured.
    """
    if size != min(batch_size, count):
        raise UsageError(
            f"{name} batches have {size} samples, but batch_size is {batch_size}",
            remedy="let batchify use config.batch_size",
        )


def require_weights(weights: Any, what: str) -> None:
    """Checks the weights of samples.

    Raises:
      UsageError: One is no finite number of at least 0.
    """
    values = np.asarray(weights)
    if values.dtype.kind not in "biuf":
        raise UsageError(f"the weights of {what} are {values.dtype.name}, not numbers")
    if not np.isfinite(values).all() or (values < 0).any():
        wrong = values[~np.isfinite(values) | (values < 0)].reshape(-1)[0]
        raise UsageError(f"a weight of {what} is {wrong}, but weights must be finite and not negative")


def _compared(components: Components, name: SplitName, batches: Iterator[Any]) -> Iterator[Any]:
    return components.validation_order.compare(batches) if name == "validation" else batches


def _remembering(samples: Iterator[Any], passed: collections.deque[Any]) -> Iterator[Any]:
    for sample in samples:
        passed.append(sample)
        yield sample


def _popped(passed: collections.deque[Any]) -> Iterator[Any]:
    while passed:
        yield passed.popleft()


def _with_samples(batches: Iterator[Any], loaded: Iterator[Any] | None) -> Iterator[tuple[Any, list[Any] | None]]:
    """Yields batches with the inputs of as many samples; with None from where the preprocessor took fewer or more."""
    for batch in batches:
        size = len(nest.flatten(batch[1])[0])
        samples = [] if loaded is None else [sample[0] for sample in itertools.islice(loaded, size)]
        loaded = loaded if len(samples) == size else None
        yield batch, samples if loaded is not None else None


class GeneratedStream(IterableStream):
    """A generator function that yields a known number of batches in each pass.

    Args:
      source: The function.
      batches: How many batches it yields.
      repeat: Whether epoch follows epoch without end.
      seed: With the epoch, seeds the random generators of Python and NumPy for the function.
    """

    def __init__(self, source: Callable[[], Iterator[Any]], batches: int, *, repeat: bool, seed: int) -> None:
        super().__init__(source, repeat=repeat, seed=seed)
        self._announced = batches

    @property
    def batches_per_epoch(self) -> int:
        """The number of batches that was announced."""
        return self._announced


class CheckedLengthStream(MappedStream):
    """The training batches of a dataset, counted while they are read: the size of some is not known before.

    Args:
      stream: The dataset's stream.
      components: The components that the dataset comes from, which errors name.
      pipeline: How many samples and how many batches a pass has to have.
      endless: Whether a pass never ends, so that nothing is counted.
    """

    def __init__(self, stream: Stream, components: Components, pipeline: _Pipeline, endless: bool) -> None:
        super().__init__(stream, lambda batch: batch)
        self._components, self._pipeline, self._endless = components, pipeline, endless

    def open(self, epoch: int, batch: int) -> Iterator[Any]:
        """Returns the batches of a pass from one on.

        Raises:
          UsageError: A pass has fewer or more than announced: epochs would overlap.
        """
        pipeline = self._pipeline
        with _reading(self._components, "training", pipeline):
            batches = super().open(epoch, batch)
            if not self._endless:
                batches = self._counted(batches, batch, pipeline.count, pipeline.n_iter)
            yield from _valid(self._components, "training", batches, pipeline.count, batch)

    def _counted(self, batches: Iterator[Any], begin: int, count: int, n_iter: int) -> Iterator[Any]:
        """Yields batches; samples are counted where `begin`, the number of the first one, is 0."""
        number, rows = begin, 0
        for number, item in enumerate(batches, start=begin + 1):
            rows += len(nest.flatten(item)[0])
            if number > n_iter:
                break
            yield item
        found = ""
        if number != n_iter:
            actual = "more" if number > n_iter else number
            found = f"{n_iter} batches were announced for a pass, but the dataset has {actual}"
        elif begin == 0 and rows != count:
            found = f"{count} samples were announced for a pass, but the dataset has {rows}"
        if found:
            remedy = f"return the actual number of samples, let batchify {_ROUNDED_UP}, and end a pass after them"
            raise NotAsAnnounced(f"training data: {found}", remedy=remedy)


class NotAsAnnounced(UsageError):
    """A pass over a split has another number of samples than announced: lost, or never there."""


def padded(samples: Iterator[Any], count: int, what: str, batch_size: int | None = None) -> Iterator[Any]:
    """Yields samples, and repeats the last one behind the end.

    Preprocessors call `next(generator)` until a batch is full: at an end they would lose the batch that they have
    begun, and Python would raise a RuntimeError. `exactly` removes what goes beyond `count`.

    Args:
      samples: The samples, which may be endless.
      count: How many were announced.
      what: What they are, for messages.
      batch_size: How many a batch has, where that is known.

    Raises:
      UsageError: There are fewer, or they are read without end.
    """
    last = yield from counted(samples, count, what)
    yield from _padding(last, count, what, batch_size)


def counted(samples: Iterator[Any], count: int, what: str) -> Generator[Any, None, Any]:
    """Yields samples, and returns the last one.

    Raises:
      UsageError: There are fewer than announced.
    """
    last, number = None, 0
    for number, last in enumerate(samples, start=1):  # noqa: B007  both are used after the loop
        yield last
    if number < count:
        raise UsageError(f"{what} announced {count} samples, but has {number}", remedy="return the actual number")
    return last


def _padding(last: Any, count: int, what: str, batch_size: int | None) -> Iterator[Any]:
    yield from itertools.repeat(last, max(count, _PADDING, 2 * (batch_size or 0)))
    raise UsageError(
        f"{what} is read without end after its {count} samples",
        remedy="build batches with itertools.islice, and do not collect a generator in a list: it may be endless",
    )


def exactly(batches: Iterable[Any], count: int, n_iter: int, what: str) -> Iterator[tuple[Any, ...]]:
    """Yields batches of exactly `count` samples in all: the last one is cut where it continues with the next pass.

    Args:
      batches: Tuples `(x, y)` or `(x, y, weights or ids)` whose leaves have a batch axis; they may be endless.
      count: How many samples there are.
      n_iter: How many batches that should be.
      what: What they are, for messages.

    Raises:
      UsageError: They end too early, are no such tuples, or are not as many as announced.
    """
    done = number = 0
    for number, item in enumerate(_until_end(iter(batches)), start=1):  # noqa: B007  used after the loop
        batch = _checked_batch(item, what)
        size = len(nest.flatten(batch[1])[0])
        yield batch if done + size <= count else nest.map_leaves(lambda leaf, n=count - done: leaf[:n], batch)
        done += size
        if done >= count:
            break
    if done < count:
        raise NotAsAnnounced(f"{what} ended after {done} samples, but {count} were announced")
    if number != n_iter:
        raise UsageError(
            f"{what}: batchify announced {n_iter} batches for {count} samples, but they fill {number}",
            remedy=_ROUNDED_UP,
        )


def _until_end(batches: Iterator[Any]) -> Iterator[Any]:
    """Yields batches; the RuntimeError that Python makes of a StopIteration inside a generator is an end, too."""
    while True:
        try:
            item = next(batches)
        except StopIteration:
            return
        except RuntimeError as error:
            if isinstance(error.__cause__, StopIteration):
                return
            raise
        yield item


def _checked_batch(item: Any, what: str) -> tuple[Any, ...]:
    if not isinstance(item, tuple | list) or not 2 <= len(item) <= 3:
        if isinstance(item, list) and all(isinstance(sample, tuple) for sample in item):
            raise UsageError(f"{what}: batchify returned a list of samples, not a tuple of arrays", remedy=_BUILD)
        size = f" of {len(item)}" if isinstance(item, tuple | list) else ""
        raise UsageError(
            f"{what}: a batch must be (x, y, sample weights), or (x, y, ids) of test data, but is a "
            f"{type(item).__name__}{size}"
        )
    batch = tuple(nest.map_leaves(_array, part) for part in item)
    sizes = {len(leaf) if leaf.ndim else None for leaf in nest.flatten(batch)}
    if None in sizes:
        raise UsageError(f"{what}: {_SINGLE}: {nest.map_leaves(np.shape, batch)}", remedy=_BUILD)
    if len(sizes) != 1:
        shapes = nest.map_leaves(np.shape, batch)
        raise UsageError(f"{what}: the parts of a batch contain different numbers of samples: {shapes}")
    return batch


def _array(leaf: Any) -> np.ndarray:
    """Returns an array as Keras takes it; Python's double precision becomes Keras's precision."""
    array = np.asarray(leaf)
    return array.astype(keras.config.floatx()) if array.dtype == np.float64 else array


def is_dataset(value: Any) -> bool:
    """Whether a value is a `tf.data.Dataset`; imports nothing."""
    return hasattr(value, "element_spec") and hasattr(value, "as_numpy_iterator")


def _without_repeat(dataset: Any) -> Any:
    """Returns the dataset behind an endless `repeat()`.

    So each epoch is a pass of its own, and a resumed run opens its epoch without reading those before. A dataset that
    repeats elsewhere, as `repeat().batch(8)`, is returned as it is.
    """
    part = dataset
    while _is(part, "Prefetch") and len(part._inputs()) == 1:
        part = part._inputs()[0]
    if _is(part, "Repeat") and int(part.cardinality()) == -1 and len(part._inputs()) == 1:
        (inner,) = part._inputs()
        return inner if not tf_data.is_infinite(inner) else dataset
    return dataset


def _repeats_before_batching(dataset: Any, count: int) -> bool:
    """Whether epochs of `count` samples end inside a batch, because the dataset repeats before it is batched."""
    if not tf_data.is_infinite(dataset):
        return False
    tf = load_tensorflow("reading a tf.data.Dataset")
    late = [part for part in tf_data.parts(dataset) if hasattr(part, "_batch_size") and tf_data.is_infinite(part)]
    sizes = [tf.get_static_value(part._batch_size) for part in late]
    return any(size is not None and count % int(size) for size in sizes)


def _is(part: Any, kind: str) -> bool:
    return kind in type(part).__name__ and hasattr(part, "_inputs")
