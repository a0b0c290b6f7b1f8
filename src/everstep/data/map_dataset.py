"""Datasets of single samples by index, such as those of PyTorch and of Hugging Face's `datasets`."""

from collections.abc import Iterator, Mapping, Sequence
from numbers import Number
from typing import Any

import numpy as np

from everstep.data import nest, randomness
from everstep.data.arrays import check_batch_size
from everstep.data.arrow_columns import HuggingFaceColumns, has_columns, in_numpy_format
from everstep.data.names import class_names, file_names
from everstep.data.stream import OwnRows, Part, Stream
from everstep.errors import UsageError
from everstep.types import Batch


class MapDatasetStream(Stream):
    """Batches of a dataset that has `__len__`, and `__getitem__`, which returns one sample by its index.

        stream = MapDatasetStream(dataset, 32, shuffle=True, seed=0, repeat=True, drop_remainder=True)

    The order of an epoch is that of `ArrayStream`, so any position is found without reading what comes before it. If
    the dataset has `__getitems__`, as in PyTorch and `datasets`, a batch is one call of that. Columns of numbers of a
    Hugging Face dataset are converted from Arrow at once, see `arrow_columns.py`.

    Samples are any nesting of dicts and tuples; a list of numbers is an array. The dataset's code may draw from
    `random` and `np.random`, which are set from seed, epoch and batch meanwhile.

    Args:
      dataset: The dataset.
      batch_size: Samples per batch.
      shuffle: Whether each epoch has its own order.
      seed: With the epoch, determines that order.
      repeat: Whether epoch follows epoch without end.
      drop_remainder: Whether the last, short batch of an epoch is dropped.

    Raises:
      UsageError: The dataset is empty, has no length, or too few samples for a batch.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        repeat: bool = False,
        drop_remainder: bool = False,
    ):
        self._dataset, self._size = dataset, _length(dataset)
        self._named = dataset  # as the user has it
        self._columns: HuggingFaceColumns | None = None
        if has_columns(dataset):
            self._dataset, self._columns = in_numpy_format(dataset), HuggingFaceColumns(dataset)
        check_batch_size(batch_size, self._size, drop_remainder)
        self._batch_size, self._shuffle, self._seed = batch_size, shuffle, seed
        full, rest = divmod(self._size, batch_size)
        self._length = full + (rest > 0 and not drop_remainder)
        self._form: Any = None  # of the samples of the last batch
        self._draws = False  # whether the dataset's code draws random numbers
        super().__init__(repeat=repeat, batches_per_epoch=self._length)

    @property
    def classes(self) -> list[str]:
        """The names of the dataset's classes, where it has them; see `names.py`."""
        return class_names(self._named)

    def sample_ids(self) -> list[str] | None:
        """Returns the files of a dataset that lists them, such as `torchvision.datasets.ImageFolder`."""
        found = None if self._shuffle else file_names(self._named)
        return found if found is not None and len(found) == self._size else None

    @property
    def reads_rows(self) -> bool:
        """True: samples are read by their indices."""
        return True

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Yields the epoch's batches from that batch on."""
        for number, indices in self._indices(epoch, batch):
            yield self._whole(epoch, number, indices)

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Yields these rows of the epoch's batches from that batch on; no other samples are read.

        Two kinds of batches are read whole. The dataset's code may draw random numbers: those of a sample depend on the
        samples before it. And samples may have another form than in the batch before: then either all of the batch have
        it, or the error names those that differ.
        """
        for number, indices in self._indices(epoch, batch):
            own = rows(len(indices))
            part: Batch | None = self._columns.read(indices[own]) if self._columns is not None else None
            if part is None and not self._draws and self._form is not None:
                drawn = randomness.DrawDetector()
                with randomness.for_batch(self._seed, epoch, number), drawn:
                    part = stacked(self._samples(indices[own]), indices[own])
                self._draws = drawn.any
            if part is None or self._draws or nest.form(part) != self._form:
                whole = self._whole(epoch, number, indices)
                part = nest.map_leaves(lambda leaf, own=own: leaf[own], whole)
            yield Part(part, len(indices))

    def _indices(self, epoch: int, batch: int) -> Iterator[tuple[int, list[int]]]:
        """Yields the number and the samples of each of the epoch's batches from that batch on."""
        random = randomness.generator(self._seed, epoch)
        order = random.permutation(self._size) if self._shuffle else np.arange(self._size)
        for number in range(batch, self._length):
            yield number, order[number * self._batch_size : (number + 1) * self._batch_size].tolist()

    def _whole(self, epoch: int, number: int, indices: list[int]) -> Batch:
        batch: Batch | None = self._columns.read(indices) if self._columns is not None else None
        if batch is None:
            with randomness.for_batch(self._seed, epoch, number):
                batch = stacked(self._samples(indices), indices)
        self._form = nest.form(batch)
        return batch

    def _samples(self, indices: list[int]) -> list[Any]:
        at_once = getattr(self._dataset, "__getitems__", None)
        if at_once is None:
            return [self._dataset[index] for index in indices]
        samples = list(at_once(indices))
        if len(samples) != len(indices):
            raise UsageError(
                f"{_name(self._dataset)}.__getitems__ returned {len(samples)} samples for {len(indices)} indices",
                remedy="return a list with one sample for each index",
            )
        return samples


def stacked(samples: Sequence[Any], indices: Sequence[int]) -> Batch:
    """Returns samples as one batch.

    Raises:
      UsageError: They differ in nesting or shapes; names the first that differs from the batch's first sample.
    """
    for sample, index in zip(samples, indices, strict=True):
        if sample is None:
            raise UsageError(f"sample {index} is None", remedy="return the sample from __getitem__")
    trees = [_with_arrays(sample) for sample in samples]
    forms = [dict(nest.walk(tree)) for tree in trees]
    for form, index in zip(forms, indices, strict=True):
        _check_alike(form, forms[0], index, indices[0])
    return nest.stack(trees)


def _check_alike(form: dict[str, Any], first: dict[str, Any], index: int, first_index: int) -> None:
    """Compares two samples, each as its leaves by path."""
    if list(form) != list(first):
        raise UsageError(
            f"sample {index} has the parts {_listed(form)}, but sample {first_index} has {_listed(first)}",
            remedy="samples of one batch must have the same nesting",
        )
    for path, leaf in form.items():
        if leaf.shape != first[path].shape:
            raise UsageError(
                f"sample {index} has the shape {leaf.shape}{path and f' at {path}'}, but sample {first_index} has "
                f"{first[path].shape}",
                remedy="pad or crop samples to one shape",
            )
        if leaf.dtype == object:
            raise UsageError(
                f"sample {index} holds a Python object{path and f' at {path}'} that is not an array of one shape",
                remedy="pad or convert it in the dataset",
            )


def _with_arrays(sample: Any) -> Any:
    """Returns the sample with arrays as leaves; lists of numbers become arrays."""
    if sample is None:
        return None
    if isinstance(sample, Mapping):
        return {key: _with_arrays(part) for key, part in sample.items()}
    if isinstance(sample, tuple) or (isinstance(sample, list) and not _is_numbers(sample)):
        parts = [_with_arrays(part) for part in sample]
        return type(sample)(*parts) if hasattr(sample, "_fields") else type(sample)(parts)
    return _array(sample)


def _array(leaf: Any) -> np.ndarray:
    try:
        return np.asarray(leaf)
    except ValueError:  # a list of lists of different lengths
        array = np.empty((), object)
        array[()] = leaf
        return array


def _is_numbers(part: Any) -> bool:
    """Whether it is a number, or a list of numbers, nested to any depth."""
    if isinstance(part, list):
        return all(map(_is_numbers, part))
    return isinstance(part, (Number, np.generic))


def _length(dataset: Any) -> int:
    try:
        size = len(dataset)
    except (TypeError, NotImplementedError, AttributeError) as error:
        raise no_length(dataset) from error
    if not size:
        raise UsageError(f"the {_name(dataset)} is empty", remedy="a dataset needs at least one sample")
    return size


def no_length(dataset: Any) -> UsageError:
    """Returns the error for a dataset that has samples by index but no length."""
    return UsageError(
        f"{_name(dataset)} has __getitem__ but no __len__, so the number of samples in an epoch is not known",
        remedy="add __len__, or pass a function that returns an iterator over batches",
    )


def _name(dataset: Any) -> str:
    return type(dataset).__name__


def _listed(form: Mapping[str, Any]) -> str:
    return ", ".join(path or "(one array)" for path in form) or "(none)"
