"""From whatever a task's `build_inputs` returns to a `Stream`."""

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from everstep.data import nest
from everstep.data.arrays import ArrayStream
from everstep.data.config import DataConfig
from everstep.data.input_reader import InputReader
from everstep.data.input_stream import InputStream
from everstep.data.iterables import IterableStream
from everstep.data.stream import Stream
from everstep.data.tf_data import TFDataStream, is_unbatched
from everstep.errors import UsageError


class _Reading(NamedTuple):
    """The configuration with every None decided."""

    training: bool
    repeat: bool
    drop_remainder: bool
    seed: int


def make_stream(source: Any, config: DataConfig, *, training: bool, seed: int) -> Stream:
    """Returns the stream that reads `source`.

        stream = make_stream((images, labels), DataConfig(global_batch_size=64), training=True, seed=0)

    Arrays are cut into batches of `config.global_batch_size` and shuffled in training, and so is a
    `tf.data.Dataset` of single samples, without the shuffling. Other sources yield batches themselves. A list
    or tuple whose leaves are all arrays is arrays; a list of batches goes in as `lambda: batches`.

    Args:
      source: A Stream, which is returned as it is; arrays in any nesting; a `tf.data.Dataset`; a function
        that returns an iterator; an iterable.
      config: Batch size and choices.
      training: What the data is for, where `config.is_training` does not say.
      seed: The run's seed, used where `config.seed` does not say.

    Raises:
      UsageError: The source is none of these, or cannot be read as asked.
    """
    reading = _decide(config, training, seed)
    if isinstance(source, Stream):
        return source
    if _is_dataset(source):
        return _dataset_stream(source, config, reading)
    if _is_arrays(source):
        return _array_stream(source, config, reading)
    if callable(source) or (isinstance(source, Iterable) and not isinstance(source, (str, bytes, dict))):
        return IterableStream(source, repeat=reading.repeat, seed=reading.seed)
    raise UsageError(
        f"cannot read data from {_described(source)}; accepted are NumPy arrays in any nesting of dicts, "
        "tuples and lists, a tf.data.Dataset, a function that returns an iterator, an iterable of batches, "
        "and a Stream"
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


def _decide(config: DataConfig, training: bool, seed: int) -> _Reading:
    training = training if config.is_training is None else config.is_training
    return _Reading(
        training=training,
        repeat=training if config.repeat is None else config.repeat,
        drop_remainder=training if config.drop_remainder is None else config.drop_remainder,
        seed=seed if config.seed is None else config.seed,
    )


def _array_stream(arrays: Any, config: DataConfig, reading: _Reading) -> ArrayStream:
    return ArrayStream(
        arrays,
        config.global_batch_size,
        shuffle=reading.training,
        seed=reading.seed,
        repeat=reading.repeat,
        drop_remainder=reading.drop_remainder,
    )


def _dataset_stream(dataset: Any, config: DataConfig, reading: _Reading) -> TFDataStream:
    if is_unbatched(dataset):
        dataset = dataset.batch(config.global_batch_size, drop_remainder=reading.drop_remainder)
    return TFDataStream(dataset, repeat=reading.repeat)


def _is_dataset(source: Any) -> bool:
    """Whether it is a `tf.data.Dataset`: nobody can have made one without loading TensorFlow."""
    tensorflow = sys.modules.get("tensorflow")
    return tensorflow is not None and isinstance(source, tensorflow.data.Dataset)


def _is_arrays(source: Any) -> bool:
    leaves = nest.flatten(source)
    return bool(leaves) and all(hasattr(leaf, "__array__") and hasattr(leaf, "shape") for leaf in leaves)


def _described(source: Any) -> str:
    if isinstance(source, (dict, list, tuple)):
        kinds = sorted({type(leaf).__name__ for leaf in nest.flatten(source)})
        return f"a {type(source).__name__} of {', '.join(kinds) or 'nothing'}"
    return f"an object of type {type(source).__name__}"
