"""`InputReader`: makes a stream from a data configuration and a user's functions, as in TF Model Garden.

Each epoch is one `tf.data` pipeline; resuming builds the same one and skips. The order of operations:

    read -> shuffle (training, not cached) -> decode -> combine -> sample -> parse -> filter
         -> cache (then shuffle, in training) -> batch -> postprocess
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.data import randomness, tf_data
from everstep.data.config import DataConfig
from everstep.data.files import find_files
from everstep.data.stream import OwnRows, Part, Stream, skip
from everstep.data.tf_data import load_tensorflow
from everstep.data.tfds import TfdsSource
from everstep.data.tfrecord.sources import (
    FileSource,
    Interleave,
    Shard,
    Source,
    naming_damage,
    read_records,
    seeds,
    shuffled,
    shuffled_forever,
)
from everstep.errors import UsageError, join
from everstep.types import Batch

Function = Callable[..., Any]
_ON_TENSORS = ("decode", "parse", "filter", "postprocess")
_GIGABYTE = 2**30
_PARALLEL = 8  # batches whose rows are parsed at once


@dataclasses.dataclass(frozen=True)
class Hooks:
    """A user's functions, each optional; `InputReader` documents their arguments and results."""

    decode: Function | None = None
    combine: Function | None = None
    sample: Function | None = None
    parse: Function | None = None
    filter: Function | None = None
    transform_and_batch: Function | None = None
    postprocess: Function | None = None

    @property
    def one_to_one(self) -> bool:
        """Whether every record becomes one sample."""
        return not (self.combine or self.sample or self.filter)


@dataclasses.dataclass(frozen=True)
class Reading:
    """How to read, with every default resolved; see `DataConfig`."""

    batch_size: int
    drop_remainder: bool = False
    shuffle: bool = False
    shuffle_buffer: int = 0
    seed: int = 0
    repeat: bool = False
    cache: bool = False
    prefetch: int | None = None
    ram_budget: int | None = None
    autotune_algorithm: str | None = None


class InputPipeline:
    """Builds the pipeline of an epoch; its order follows from (seed, epoch).

    Args:
      tf: The module `tensorflow`.
      sources: What to read; a dict of sources if `hooks.combine` joins several.
      hooks: The user's functions.
      reading: How to read.
      input_context: Passed to `hooks.transform_and_batch`.
    """

    def __init__(
        self, tf: Any, sources: Source | Mapping[str, Source], hooks: Hooks, reading: Reading, input_context: Any
    ):
        self._tf, self._sources, self._reading, self._context = tf, sources, reading, input_context
        self._hooks = hooks
        # Compiled here, once: every epoch's pipeline would trace them again.
        self._functions = {name: tf.function(fn) for name in _ON_TENSORS if (fn := getattr(hooks, name)) is not None}
        self._drawing: dict[str, bool] = {}
        self._cached: Any = None
        if reading.cache:  # always read in the order of epoch 0
            self._cached = self._with_options(self._parsed(self._read(0, 0, shuffle=False))).cache()
        self.unshuffled = self.batches(0, 0, shuffle=False)
        """Epoch 0 in the order of the files: for inspecting the pipeline."""

    def batches(self, epoch: int, skipped: int, *, shuffle: bool = True) -> Any:
        """Returns the epoch's batches as a dataset.

        Args:
          epoch: The epoch.
          skipped: How many batches at its start to skip; their records are not parsed if that makes no difference.
          shuffle: Whether to use the shuffle buffer.
        """
        early = self._skips_samples()
        skipped_samples = skipped * self._reading.batch_size if early else 0
        batches = self._mapped("postprocess", self._batched(self._samples(epoch, skipped_samples, shuffle)))
        return self._with_options(batches if early else batches.skip(skipped))

    @property
    def divides_records(self) -> bool:
        """Whether the rows of a batch can be chosen before its records are decoded, without changing them.

        Every record becomes one sample, no function needs whole batches or draws random numbers, and all samples have
        one shape.
        """
        if not isinstance(self._sources, Source) or self._hooks.postprocess or self._reading.cache:
            return False
        specs = [self._read(0, 0, shuffle=False).element_spec, self.unshuffled.element_spec]
        leaves = [self._tf.nest.flatten(spec) for spec in specs]
        shapes = [*(leaf.shape for leaf in leaves[0]), *(leaf.shape[1:] for leaf in leaves[1])]
        dense = all(isinstance(leaf, self._tf.TensorSpec) for leaf in (*leaves[0], *leaves[1]))
        return dense and all(shape.is_fully_defined() for shape in shapes) and self._skips_samples()

    def rows_of_batches(self, epoch: int, skipped: int, rows: OwnRows) -> Any:
        """Returns the epoch's batches as a dataset of pairs: how many samples each has, and the rows that are needed.

        The records of other rows are read, but not decoded and parsed.
        """
        tf, size = self._tf, self._reading.batch_size
        bounds = tf.constant([(0, 0), *((rows(count).start, rows(count).stop) for count in range(1, size + 1))])

        def own(batch: Any) -> Any:
            count = tf.shape(tf.nest.flatten(batch)[0])[0]
            part = tf.nest.map_structure(lambda leaf: leaf[bounds[count][0] : bounds[count][1]], batch)
            samples = self._parsed(tf.data.Dataset.from_tensor_slices(part))
            return tf.data.Dataset.zip((tf.data.Dataset.from_tensors(count), samples.batch(size)))

        records = self._read(epoch, skipped * size, shuffle=True)
        batches = records.batch(size, drop_remainder=self._reading.drop_remainder)
        # Each part is one element: they are computed in parallel, and come in their order.
        parts = batches.interleave(own, cycle_length=_PARALLEL, num_parallel_calls=_PARALLEL, deterministic=True)
        return self._with_options(parts)

    def _skips_samples(self) -> bool:
        """Whether records can be skipped before they are parsed, without changing the later batches."""
        if self._hooks.transform_and_batch or self._drawing.get("postprocess"):
            return False
        if self._reading.cache:
            return True
        return self._hooks.one_to_one and not any(self._drawing.get(name) for name in ("decode", "parse"))

    def _samples(self, epoch: int, skipped: int, shuffle: bool) -> Any:
        if self._cached is None:
            return self._parsed(self._read(epoch, skipped, shuffle))
        if shuffle and self._reading.shuffle and self._reading.shuffle_buffer:
            drawn = seeds(randomness.generator(self._reading.seed, epoch))
            return shuffled(self._tf, self._cached, self._reading.shuffle_buffer, *drawn).skip(skipped)
        return self._cached.skip(skipped)

    def _read(self, epoch: int, skipped: int, shuffle: bool) -> Any:
        random = randomness.generator(self._reading.seed, epoch) if self._reading.shuffle else None
        if isinstance(self._sources, Source):
            records = self._sources.records(random)
            return (self._shuffled(records, random) if shuffle else records).skip(skipped)
        return {name: self._part(self._sources[name], random, shuffle) for name in sorted(self._sources)}

    def _part(self, source: Source, random: np.random.Generator | None, shuffle: bool) -> Any:
        """Returns one source of several. In training it is infinite: `combine` decides how much of it is used."""
        records = source.records(random)
        if random is None or self._reading.cache or not self._reading.repeat:
            return self._shuffled(records, random) if shuffle else records
        if not shuffle or not self._reading.shuffle_buffer:
            return records.repeat()
        return shuffled_forever(self._tf, records, self._reading.shuffle_buffer, *seeds(random))

    def _shuffled(self, records: Any, random: np.random.Generator | None) -> Any:
        if random is None or self._reading.cache or not self._reading.shuffle_buffer:
            return records
        return shuffled(self._tf, records, self._reading.shuffle_buffer, *seeds(random))

    def _parsed(self, records: Any) -> Any:
        """Returns the samples of the records: decoded, combined, sampled, parsed and filtered."""
        if self._hooks.combine and isinstance(records, dict):
            samples = self._hooks.combine({name: self._mapped("decode", part) for name, part in records.items()})
        else:
            samples = self._mapped("decode", records)
        if self._hooks.sample:
            samples = samples.apply(self._hooks.sample)
        samples = self._mapped("parse", samples)
        return samples.filter(self._functions["filter"]) if self._hooks.filter else samples

    def _batched(self, samples: Any) -> Any:
        if self._hooks.transform_and_batch:
            return self._hooks.transform_and_batch(samples, self._context)
        return samples.batch(self._reading.batch_size, drop_remainder=self._reading.drop_remainder)

    def _mapped(self, name: str, dataset: Any) -> Any:
        """Returns the dataset passed through a user's function, in parallel unless it draws random numbers."""
        function = self._functions.get(name)
        if function is None:
            return dataset
        if name not in self._drawing:
            self._drawing[name] = self._draws(function, dataset.element_spec)
        if self._drawing[name]:
            return dataset.map(function)
        return dataset.map(function, num_parallel_calls=self._tf.data.AUTOTUNE, deterministic=True)

    def _draws(self, function: Any, spec: Any) -> bool:
        arguments = spec if type(spec) is tuple else (spec,)
        return any(tf_data.draws(self._tf, function.get_concrete_function(*arguments).graph))

    def _with_options(self, dataset: Any) -> Any:
        options = self._tf.data.Options()
        options.deterministic = True
        if self._reading.ram_budget is not None:
            options.autotune.ram_budget = self._reading.ram_budget * _GIGABYTE
        if self._reading.autotune_algorithm is not None:
            algorithms = self._tf.data.experimental.AutotuneAlgorithm
            options.autotune.autotune_algorithm = algorithms[self._reading.autotune_algorithm]
        return dataset.with_options(options)


class InputStream(Stream):
    """Batches from record files or TensorFlow Datasets; returned by `InputReader.read`.

    The order is a pure function of (seed, epoch). Skipped records are read but not parsed if each becomes one sample
    and no function draws random numbers; otherwise everything before the position is computed again.

    Args:
      sources: What to read; a dict of sources if `hooks.combine` joins several.
      hooks: The user's functions.
      reading: How to read.
      input_context: Passed to `hooks.transform_and_batch`.
    """

    _key = "input_path"  # the key that names the files, for errors

    def __init__(
        self, sources: Source | Mapping[str, Source], hooks: Hooks, reading: Reading, input_context: Any = None
    ):
        self._tf = load_tensorflow("reading record files")
        self._pipeline = InputPipeline(self._tf, sources, hooks, reading, input_context)
        self._sources = [sources] if isinstance(sources, Source) else list(sources.values())
        self._prefetch = self._tf.data.AUTOTUNE if reading.prefetch is None else reading.prefetch
        size = int(self._pipeline.unshuffled.cardinality())
        self._epoch_never_ends = size == -1
        super().__init__(repeat=reading.repeat, batches_per_epoch=size if size >= 0 else None)

    @property
    def epoch_never_ends(self) -> bool:
        """Whether the first epoch has no end: it combines sources that are repeated."""
        return self._epoch_never_ends

    @property
    def files(self) -> Sequence[str]:
        """The record files; see `Stream.files`."""
        return [file for source in self._sources for file, _ in source.readers()]

    @property
    def why_not_exact(self) -> str:
        """Which of the user's functions draw numbers that no resumed run can reproduce; see `Stream.why_not_exact`."""
        weaknesses = tf_data.weaknesses(self._tf, self._pipeline.unshuffled, passes=not self._epoch_never_ends)
        return "; ".join(weaknesses)

    @functools.cached_property
    def _divides_records(self) -> bool:
        return self._pipeline.divides_records

    @property
    def reads_rows(self) -> bool:
        """Whether only the rows that are needed are decoded and parsed; all records are read."""
        return self._divides_records

    def open(self, epoch: int, batch: int) -> Iterator[Batch]:
        """Returns the epoch's batches from that batch on."""
        return self._read_from(batch, lambda skipped: self._pipeline.batches(epoch, skipped))

    def open_rows(self, epoch: int, batch: int, rows: OwnRows) -> Iterator[Part]:
        """Returns these rows of the epoch's batches from that batch on."""
        parts = self._read_from(batch, lambda skipped: self._pipeline.rows_of_batches(epoch, skipped, rows))
        return (Part(data, int(size)) for size, data in parts)

    def _read_from(self, batch: int, batches: Callable[[int], Any]) -> Iterator[Any]:
        """Returns what the dataset yields from that batch on, which `batches` returns for a number of skipped ones."""
        # One batch less is skipped in the pipeline: reading it proves that the position exists.
        skipped = max(batch - 1, 0)
        elements = batches(skipped).prefetch(self._prefetch).as_numpy_iterator()
        readers = [pair for source in self._sources for pair in source.readers()]
        named = naming_damage(self._tf, elements, readers, self._key)
        skip(named, batch - skipped, batch)
        return named


class InputReader:
    """Reads the data of a `DataConfig` through your functions; for a task's `build_inputs`.

        def build_inputs(self, params, input_context=None):
            reader = InputReader(params, decoder_fn=self.decode, parser_fn=self.parse)
            return reader.read(input_context)

    The functions run in this order: read, shuffle (training), `decoder_fn`, `combine_fn`, `sample_fn`,
    `parser_fn`, `filter_fn`, cache, batch, `postprocess_fn`. Those that receive tensors are written in TensorFlow, on
    every backend. Training data is shuffled and repeated, evaluation data is neither.

    A resumed run gets the very next batch. Random numbers of `tf.random.stateless_…` in the functions are always
    reproduced; the stream's `why_not_exact` names others that are not.

    Args:
      params: The data section of a task's configuration.
      dataset_fn: Creates a dataset of records from one file's path; None reads TFRecord files.
      decoder_fn: Decodes one serialised record to tensors.
      combine_fn: Joins a dict of datasets to one, if `input_path` or `tfds_name` is a dict. In training each of them
        is infinite.
      sample_fn: Transforms the dataset of decoded records: takes a part, repeats some, windows.
      parser_fn: Converts one decoded record to a sample.
      filter_fn: Returns whether a sample is used.
      transform_and_batch_fn: Batches the dataset of samples, called with it and `input_context`; None cuts batches
        of `global_batch_size`.
      postprocess_fn: Changes a whole batch.
      compression: Of TFRecord files: `""`, `"GZIP"` or `"ZLIB"`.

    Raises:
      UsageError: The configuration names no data, missing data, or contradicts itself.
    """

    def __init__(
        self,
        params: DataConfig,
        dataset_fn: Callable[..., Any] | None = None,
        decoder_fn: Callable[..., Any] | None = None,
        combine_fn: Callable[..., Any] | None = None,
        sample_fn: Callable[..., Any] | None = None,
        parser_fn: Callable[..., Any] | None = None,
        filter_fn: Callable[..., Any] | None = None,
        transform_and_batch_fn: Callable[..., Any] | None = None,
        postprocess_fn: Callable[..., Any] | None = None,
        *,
        compression: str = "",
    ):
        load_tensorflow("reading record files")
        params.validate()
        _check_source(params, combine_fn)
        self._params = params
        self._read_file = read_records(compression) if dataset_fn is None else dataset_fn
        self._files = _find_all(params.input_path)
        self._hooks = Hooks(
            decoder_fn, combine_fn, sample_fn, parser_fn, filter_fn, transform_and_batch_fn, postprocess_fn
        )

    def read(self, input_context: Any = None) -> InputStream:
        """Returns the stream.

        Args:
          input_context: If several processes share the work: a `tf.distribute.InputContext`, or any object with its
            `num_input_pipelines`, `input_pipeline_id` and `num_replicas_in_sync`. Batches then have one replica's
            share of `global_batch_size`, and each process reads a part of the data.

        Raises:
          UsageError: The batch size cannot be shared evenly.
        """
        shard = Shard()
        if input_context is not None and self._params.sharding:
            shard = Shard(int(input_context.input_pipeline_id), int(input_context.num_input_pipelines))
        names = self._files or self._params.tfds_name
        if isinstance(names, dict):
            sources: Any = {key: self._source(value, shard) for key, value in names.items()}
        else:
            sources = self._source(names, shard)
        return InputStream(sources, self._hooks, _reading(self._params, input_context), input_context)

    def _source(self, name: str | list[str], shard: Shard) -> Source:
        if isinstance(name, str):
            return TfdsSource(name, self._params, shard)
        interleave = Interleave(self._params.cycle_length, self._params.block_length)
        return FileSource(load_tensorflow("reading record files"), name, self._read_file, interleave, shard)


def _check_source(params: DataConfig, combine_fn: Callable[..., Any] | None) -> None:
    if params.cache in ("device", "host"):
        raise UsageError(
            "says where arrays live, but this data is read from records",
            key="cache",
            received=params.cache,
            remedy="set it to true to keep parsed samples in memory, or to false",
        )
    if not params.input_path and not params.tfds_name:
        raise UsageError(
            "is empty",
            key="input_path",
            remedy="name record files, such as 'data/*.tfrecord', or a dataset in tfds_name",
        )
    for key in ("input_path", "tfds_name"):
        if isinstance(getattr(params, key), dict) and combine_fn is None:
            raise UsageError("several sources need a combine_fn", key=key, received=getattr(params, key))


def _find_all(paths: str | list[str] | dict[str, str | list[str]]) -> list[str] | dict[str, list[str]]:
    if isinstance(paths, dict):
        return {name: find_files(part, join("input_path", name)) for name, part in paths.items()}
    return find_files(paths) if paths else []


def _reading(params: DataConfig, context: Any) -> Reading:
    training = bool(params.is_training)
    replicas = 1 if context is None else int(context.num_replicas_in_sync)
    if params.global_batch_size % replicas:
        raise UsageError(
            f"cannot be shared evenly by {replicas} replicas",
            key="global_batch_size",
            received=params.global_batch_size,
            remedy=f"use a multiple of {replicas}",
        )
    return Reading(
        batch_size=params.global_batch_size // replicas,
        drop_remainder=training if params.drop_remainder is None else params.drop_remainder,
        shuffle=training,
        shuffle_buffer=params.shuffle_buffer_size,
        seed=params.seed or 0,
        repeat=training if params.repeat is None else params.repeat,
        cache=params.cache is True,
        prefetch=params.prefetch_buffer_size,
        ram_budget=params.ram_budget,
        autotune_algorithm=params.autotune_algorithm,
    )
