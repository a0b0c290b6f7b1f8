"""Makes a `Stream` of any data source that a task's `build_inputs` returns.

To add a source, write a `Stream` in a new file of this folder (`stream.py` has the interface), and recognize its kind
in `make_stream`.
"""

import contextlib
import operator
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from everstep.data import nest
from everstep.data.arrays import ArrayStream, RowsStream
from everstep.data.config import DataConfig
from everstep.data.grain import GrainStream
from everstep.data.images.sources import ImageSource
from everstep.data.images.stream import ImageStream
from everstep.data.input_reader import InputReader, InputStream
from everstep.data.iterables import IterableStream
from everstep.data.map_dataset import MapDatasetStream, no_length
from everstep.data.parquet import ParquetSource, ParquetStream
from everstep.data.py_dataset import PyDatasetStream
from everstep.data.sparse import Rows, is_sparse_or_ragged
from everstep.data.stream import Stream
from everstep.data.tf_data import TFDataStream, is_unbatched
from everstep.data.wrappers import limited
from everstep.errors import UsageError


def make_stream(source: Any, config: DataConfig, *, training: bool, seed: int, shuffle: bool | None = None) -> Stream:
    """Returns the stream that reads `source`.

        stream = make_stream((images, labels), DataConfig(global_batch_size=64), training=True, seed=0)

    Arrays and datasets of single samples are cut into batches of `config.global_batch_size`. Arrays, datasets by index
    and the batches of a `PyDataset` are shuffled in training; other sources keep their order. A list or tuple whose
    leaves are all arrays counts as arrays; pass a list of batches as `lambda: batches`.

    Args:
      source: A Stream; an `ImageSource` or `ParquetSource`; arrays in any nesting; a `tf.data.Dataset`; a Grain
        `DataLoader`, `MapDataset` or `IterDataset`; a `keras.utils.PyDataset`; a dataset with `__len__` and
        `__getitem__`, such as one of PyTorch or Hugging Face; a function that returns an iterator; an iterable.
      config: Batch size and choices; `limit_batches` applies to every source.
      training: Whether it is training data, if `config.is_training` is None.
      seed: The run's seed, used if `config.seed` is None.
      shuffle: Whether to shuffle the sources that can be shuffled here; None to shuffle training data.

    Raises:
      UsageError: The source is none of these, or cannot be read as configured.
    """
    training = training if config.is_training is None else config.is_training
    shuffle = training if shuffle is None else shuffle
    repeat = training if config.repeat is None else config.repeat
    drop_remainder = training if config.drop_remainder is None else config.drop_remainder
    seed = seed if config.seed is None else config.seed
    batch_size = config.global_batch_size
    order: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "repeat": repeat}
    stream: Stream
    # The order of the cases matters: many sources have several of these interfaces.
    if isinstance(source, Stream):
        stream = source.repeated() if repeat else source
    elif isinstance(source, ImageSource):
        images = source.subset(training)
        stream = ImageStream(images, batch_size, **order, drop_remainder=drop_remainder, training=training)
    elif isinstance(source, ParquetSource):
        stream = ParquetStream(source, batch_size, **order, drop_remainder=drop_remainder)
    elif _is_dataset(source):
        samples = is_unbatched(source)
        batches = source.batch(batch_size, drop_remainder=drop_remainder) if samples else source
        stream = TFDataStream(batches, repeat=repeat)
    elif _is_grain(source):
        stream = GrainStream(source, batch_size=batch_size, repeat=repeat, drop_remainder=drop_remainder)
    elif _is_py_dataset(source):
        stream = PyDatasetStream(source, **order)
    elif _is_one_of(source, "datasets", "DatasetDict", "IterableDatasetDict"):
        splits = ", ".join(repr(str(name)) for name in source) or "(none)"
        raise UsageError(
            f"a {type(source).__name__} holds several datasets, its splits {splits}",
            remedy=f"pass one of them, such as data[{str(next(iter(source), 'train'))!r}]",
        )
    elif _is_pairs(source):
        raise UsageError(
            "is a list of (x, y) pairs, which may be samples or batches",
            remedy="pass samples as arrays, (np.stack([x for x, y in pairs]), np.stack([y for x, y in pairs])), and "
            "batches as a function, lambda: pairs",
        )
    elif is_arrays(source):
        kind = RowsStream if any(map(_is_sparse_or_rows, nest.flatten(source))) else ArrayStream
        stream = kind(source, batch_size, **order, drop_remainder=drop_remainder)
    elif _is_map_dataset(source):
        stream = MapDatasetStream(source, batch_size, **order, drop_remainder=drop_remainder)
    elif callable(source) or (isinstance(source, Iterable) and not isinstance(source, (str, bytes, dict))):
        stream = IterableStream(source, repeat=repeat, seed=seed)
    elif hasattr(source, "__getitem__") and not isinstance(source, (str, bytes, dict, list, tuple)):
        raise no_length(source)
    else:
        raise UsageError(
            f"cannot read data from {_described(source)}",
            remedy="pass NumPy arrays in any nesting of dicts, tuples and lists, a tf.data.Dataset, a Grain DataLoader "
            "or dataset, a keras.utils.PyDataset, a dataset with __len__ and __getitem__, a function that returns an "
            "iterator, an iterable of batches, or a Stream",
        )
    return limited(stream, config.limit_batches)


def left_out(source: Any) -> ImageSource | None:
    """Returns what an evaluation reads of training data that leaves some out, `ImageDataConfig.validation_split`.

    It is the same source, of which `make_stream` takes the other part; None if nothing is left out.
    """
    return source if isinstance(source, ImageSource) and source.config.validation_split else None


def record_stream(
    config: DataConfig, parse: Callable[[Any], Any], *, training: bool, seed: int, compression: str = ""
) -> InputStream:
    """Returns the stream over the TFRecord files that `config.input_path` names: `InputReader` with one function.

    Args:
      config: Files, batch size and choices.
      parse: Converts one serialised record to a sample, in TensorFlow.
      training: Whether it is training data, if `config.is_training` is None.
      seed: The run's seed, used if `config.seed` is None.
      compression: `""`, `"GZIP"` or `"ZLIB"`.

    Raises:
      UsageError: The configuration names no files, missing files, or contradicts itself; names the key.
    """
    decided = config.replace(
        is_training=training if config.is_training is None else config.is_training,
        seed=seed if config.seed is None else config.seed,
    )
    return InputReader(decided, parser_fn=parse, compression=compression).read()


def _is_dataset(source: Any) -> bool:
    """Whether it is a `tf.data.Dataset`."""
    return _is_one_of(source, "tensorflow", "data.Dataset")


def _is_grain(source: Any) -> bool:
    return _is_one_of(source, "grain", "DataLoader", "MapDataset", "IterDataset")


def _is_py_dataset(source: Any) -> bool:
    return _is_one_of(source, "keras", "utils.PyDataset")


def _is_one_of(source: Any, module: str, *names: str) -> bool:
    """Whether it is an instance of a class of a package; if the package is not loaded, it cannot be."""
    loaded = sys.modules.get(module)
    found: list[Any] = []
    for name in names:
        with contextlib.suppress(AttributeError):  # another package of that name, or one still being loaded
            found.append(operator.attrgetter(name)(loaded))
    return isinstance(source, tuple(kind for kind in found if isinstance(kind, type)))


def is_arrays(source: Any) -> bool:
    """Whether it consists of arrays only, in any nesting; sparse matrices and ragged tensors count."""
    leaves = nest.flatten(source)
    return bool(leaves) and all(
        (hasattr(leaf, "__array__") and hasattr(leaf, "shape")) or _is_sparse_or_rows(leaf) for leaf in leaves
    )


def _is_pairs(source: Any) -> bool:
    """Whether it is a list of tuples of arrays, as steps get them; a list of inputs holds arrays, or dicts of them."""
    pairs = type(source) is list and all(isinstance(item, tuple) and len(item) in (2, 3) for item in source)
    return pairs and is_arrays(source)


def _is_sparse_or_rows(leaf: Any) -> bool:
    return isinstance(leaf, Rows) or is_sparse_or_ragged(leaf)


def makes_batches(source: Any) -> bool:
    """Whether a source yields batches, so that the configured batch size has no effect."""
    if _is_dataset(source):
        return not is_unbatched(source)
    if isinstance(source, ImageSource | ParquetSource):
        return False
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


def _described(source: Any) -> str:
    if isinstance(source, (dict, list, tuple)):
        kinds = sorted({type(leaf).__name__ for leaf in nest.flatten(source)})
        return f"a {type(source).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"an object of type {type(source).__name__}"
