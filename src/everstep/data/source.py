"""From whatever a task's `build_inputs` returns to a `Stream`."""

import contextlib
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from everstep.data import nest
from everstep.data.arrays import ArrayStream, RowsStream
from everstep.data.config import DataConfig
from everstep.data.grain import GrainStream
from everstep.data.input_reader import InputReader, InputStream
from everstep.data.iterables import IterableStream
from everstep.data.map_dataset import MapDatasetStream, no_length
from everstep.data.py_dataset import PyDatasetStream
from everstep.data.sparse import Rows, is_sparse_or_ragged
from everstep.data.stream import Stream
from everstep.data.tf_data import TFDataStream, is_unbatched
from everstep.data.wrappers import limited
from everstep.errors import UsageError


class _Reading(NamedTuple):
    """The configuration with every None decided."""

    training: bool
    shuffle: bool
    repeat: bool
    drop_remainder: bool
    seed: int

    def choices(self) -> dict[str, Any]:
        """Returns the arguments of the streams that are shuffled and batched here."""
        return {name: getattr(self, name) for name in ("shuffle", "seed", "repeat", "drop_remainder")}


def make_stream(source: Any, config: DataConfig, *, training: bool, seed: int, shuffle: bool | None = None) -> Stream:
    """Returns the stream that reads `source`.

        stream = make_stream((images, labels), DataConfig(global_batch_size=64), training=True, seed=0)

    Arrays and datasets of single samples are cut into batches of `config.global_batch_size`. Arrays, datasets by index
    and the batches of a `PyDataset` are shuffled in training; other sources come as they are. A list or tuple whose
    leaves are all arrays is arrays; a list of batches goes in as `lambda: batches`.

    Args:
      source: A Stream; arrays in any nesting; a `tf.data.Dataset`; a Grain `DataLoader`,
        `MapDataset` or `IterDataset`; a `keras.utils.PyDataset`; a dataset with `__len__` and `__getitem__`, such as
        one of PyTorch or Hugging Face; a function that returns an iterator; an iterable.
      config: Batch size and choices; `limit_batches` holds for every source.
      training: What the data is for, where `config.is_training` does not say.
      seed: The run's seed, used where `config.seed` does not say.
      shuffle: Whether what can be shuffled here is; None for in training.

    Raises:
      UsageError: The source is none of these, or cannot be read as configured.
    """
    return limited(_whole(source, config, _decide(config, training, seed, shuffle)), config.limit_batches)


def _whole(source: Any, config: DataConfig, reading: _Reading) -> Stream:
    """Returns the stream over everything there is."""
    if isinstance(source, Stream):
        return source
    for recognises, stream_of in _KINDS:
        if recognises(source):
            return stream_of(source, config.global_batch_size, reading)
    if hasattr(source, "__getitem__") and not isinstance(source, (str, bytes, dict, list, tuple)):
        raise no_length(source)
    raise UsageError(
        f"cannot read data from {_described(source)}",
        remedy="pass NumPy arrays in any nesting of dicts, tuples and lists, a tf.data.Dataset, a Grain DataLoader or "
        "dataset, a keras.utils.PyDataset, a dataset with __len__ and __getitem__, a function that returns an "
        "iterator, an iterable of batches, or a Stream",
    )


def record_stream(
    config: DataConfig, parse: Callable[[Any], Any], *, training: bool, seed: int, compression: str = ""
) -> InputStream:
    """Returns the stream over the TFRecord files that `config.input_path` names: `InputReader` with one function.

    Args:
      config: Files, batch size and choices.
      parse: Makes a sample of one serialised record, in TensorFlow.
      training: What the data is for, where `config.is_training` does not say.
      seed: The run's seed, used where `config.seed` does not say.
      compression: `""`, `"GZIP"` or `"ZLIB"`.

    Raises:
      UsageError: The section names no files, files that are not there, or contradicts itself; names the key.
    """
    reading = _decide(config, training, seed)
    decided = config.replace(is_training=reading.training, seed=reading.seed)
    return InputReader(decided, parser_fn=parse, compression=compression).read()


def _decide(config: DataConfig, training: bool, seed: int, shuffle: bool | None = None) -> _Reading:
    training = training if config.is_training is None else config.is_training
    return _Reading(
        training=training,
        shuffle=training if shuffle is None else shuffle,
        repeat=training if config.repeat is None else config.repeat,
        drop_remainder=training if config.drop_remainder is None else config.drop_remainder,
        seed=seed if config.seed is None else config.seed,
    )


def _array_stream(arrays: Any, batch_size: int, reading: _Reading) -> Stream:
    return ArrayStream(arrays, batch_size, **reading.choices())


def _rows_stream(arrays: Any, batch_size: int, reading: _Reading) -> Stream:
    return RowsStream(arrays, batch_size, **reading.choices())


def _map_dataset_stream(dataset: Any, batch_size: int, reading: _Reading) -> Stream:
    return MapDatasetStream(dataset, batch_size, **reading.choices())


def _dataset_stream(dataset: Any, batch_size: int, reading: _Reading) -> Stream:
    if is_unbatched(dataset):
        dataset = dataset.batch(batch_size, drop_remainder=reading.drop_remainder)
    return TFDataStream(dataset, repeat=reading.repeat)


def _grain_stream(source: Any, batch_size: int, reading: _Reading) -> Stream:
    return GrainStream(source, batch_size=batch_size, repeat=reading.repeat, drop_remainder=reading.drop_remainder)


def _py_dataset_stream(dataset: Any, _: int, reading: _Reading) -> Stream:
    return PyDatasetStream(dataset, shuffle=reading.shuffle, seed=reading.seed, repeat=reading.repeat)


def _iterable_stream(source: Any, _: int, reading: _Reading) -> Stream:
    return IterableStream(source, repeat=reading.repeat, seed=reading.seed)


def _refuse_splits(source: Any, *_: Any) -> Stream:
    splits = ", ".join(repr(str(name)) for name in source) or "(none)"
    raise UsageError(
        f"a {type(source).__name__} holds several datasets, its splits {splits}",
        remedy=f"pass one of them, such as data[{str(next(iter(source), 'train'))!r}]",
    )


def _is_dataset(source: Any) -> bool:
    """Whether it is a `tf.data.Dataset`."""
    return _is_one_of(source, "tensorflow", "data.Dataset")


def _is_grain(source: Any) -> bool:
    return _is_one_of(source, "grain", "DataLoader", "MapDataset", "IterDataset")


def _is_py_dataset(source: Any) -> bool:
    return _is_one_of(source, "keras", "utils.PyDataset")


def _is_splits(source: Any) -> bool:
    return _is_one_of(source, "datasets", "DatasetDict", "IterableDatasetDict")


def _is_one_of(source: Any, module: str, *names: str) -> bool:
    """Whether it is an instance of a class of a package; without that package loaded it could not exist."""
    loaded = sys.modules.get(module)
    found: list[Any] = []
    for name in names:
        with contextlib.suppress(AttributeError):  # another package of that name, or one still being loaded
            found.append(operator.attrgetter(name)(loaded))
    return isinstance(source, tuple(kind for kind in found if isinstance(kind, type)))


def is_arrays(source: Any) -> bool:
    """Whether it consists of arrays only, in any nesting; sparse matrices and ragged tensors count."""
    leaves = nest.flatten(source)
    return bool(leaves) and all(map(_is_array, leaves))


def _is_array(leaf: Any) -> bool:
    return (
        (hasattr(leaf, "__array__") and hasattr(leaf, "shape")) or isinstance(leaf, Rows) or is_sparse_or_ragged(leaf)
    )


def _has_special(source: Any) -> bool:
    return is_arrays(source) and any(
        isinstance(leaf, Rows) or is_sparse_or_ragged(leaf) for leaf in nest.flatten(source)
    )


def makes_batches(source: Any) -> bool:
    """Whether a source decides itself how many samples a batch has."""
    if _is_dataset(source):
        return not is_unbatched(source)
    if _is_grain(source):
        return False  # only its first element shows whether it is a batch
    return _is_py_dataset(source) or not (is_arrays(source) or _is_map_dataset(source))


def _is_map_dataset(source: Any) -> bool:
    """Whether it has a length and samples by index; plain containers are batches, or arrays."""
    return (
        hasattr(source, "__len__")
        and hasattr(source, "__getitem__")
        and not isinstance(source, (str, bytes, Mapping, list, tuple, type))
    )


def _is_iterable(source: Any) -> bool:
    return callable(source) or (isinstance(source, Iterable) and not isinstance(source, (str, bytes, dict)))


_KINDS: list[tuple[Callable[[Any], bool], Callable[[Any, int, _Reading], Stream]]] = [
    (_is_dataset, _dataset_stream),
    (_is_grain, _grain_stream),
    (_is_py_dataset, _py_dataset_stream),
    (_is_splits, _refuse_splits),
    (_has_special, _rows_stream),
    (is_arrays, _array_stream),
    (_is_map_dataset, _map_dataset_stream),
    (_is_iterable, _iterable_stream),
]
"""How a source is recognised, in this order, and what reads it."""


def _described(source: Any) -> str:
    if isinstance(source, (dict, list, tuple)):
        kinds = sorted({type(leaf).__name__ for leaf in nest.flatten(source)})
        return f"a {type(source).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"an object of type {type(source).__name__}"
