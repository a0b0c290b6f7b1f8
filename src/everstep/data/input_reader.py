"""`InputReader`: from a data configuration and a user's functions to a stream, as in TF Model Garden."""

from collections.abc import Callable
from typing import Any

from everstep.config.problem import ConfigError, Problem, join
from everstep.data.config import DataConfig
from everstep.data.files import find_files, read_records
from everstep.data.input_pipeline import Hooks, Reading
from everstep.data.input_stream import InputStream
from everstep.data.passes import FileSource, Interleave, Shard, Source
from everstep.data.tf_data import load_tensorflow
from everstep.data.tfds_source import TfdsSource


class InputReader:
    """Reads what a `DataConfig` names, through functions of yours; what a task's `build_inputs` returns.

        def build_inputs(self, params, input_context=None):
            reader = InputReader(params, decoder_fn=self.decode, parser_fn=self.parse)
            return reader.read(input_context)

    The functions run in this order: read, shuffle (training), `decoder_fn`, `combine_fn`, `sample_fn`,
    `parser_fn`, `filter_fn`, cache, batch, `postprocess_fn`. Those that see tensors are written in TensorFlow,
    whatever the backend. Training data is shuffled and repeated, evaluation data is neither.

    A resumed run gets the very next batch. Random numbers in the functions keep that up as well as they can:
    `tf.random.stateless_…` always, others as the stream's `guarantee` says.

    Args:
      params: The data section of a task's configuration.
      dataset_fn: Makes a dataset of records from one file's path; None reads TFRecord files.
      decoder_fn: Makes tensors of one serialised record.
      combine_fn: Makes one dataset of a dict of them, where `input_path` or `tfds_name` is a dict. In training
        each of those has no end.
      sample_fn: Makes a dataset of a dataset of decoded records: takes a part, repeats some, windows.
      parser_fn: Makes a sample of one decoded record.
      filter_fn: Says of a sample whether it stays.
      transform_and_batch_fn: Makes batches of a dataset of samples, called with it and `input_context`; None
        cuts batches of `global_batch_size`.
      postprocess_fn: Changes a whole batch.
      compression: Of TFRecord files: `""`, `"GZIP"` or `"ZLIB"`.

    Raises:
      UsageError: The section names no data, data that is not there, or contradicts itself; names the key.
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
          input_context: Where several processes share the work: a `tf.distribute.InputContext`, or anything
            with its `num_input_pipelines`, `input_pipeline_id` and `num_replicas_in_sync`. Batches then have
            one replica's share of `global_batch_size`, and each process reads a part of the data.

        Raises:
          UsageError: The batch size cannot be shared evenly.
        """
        shard = _shard(self._params, input_context)
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
    if not params.input_path and not params.tfds_name:
        text = "is empty: name record files, such as 'data/*.tfrecord', or a dataset in tfds_name"
        raise ConfigError([Problem("input_path", text)])
    for key in ("input_path", "tfds_name"):
        if isinstance(getattr(params, key), dict) and combine_fn is None:
            text = f"received {getattr(params, key)!r}; several sources need a combine_fn that makes one of them"
            raise ConfigError([Problem(key, text)])


def _find_all(paths: str | list[str] | dict[str, str | list[str]]) -> list[str] | dict[str, list[str]]:
    if isinstance(paths, dict):
        return {name: find_files(part, join("input_path", name)) for name, part in paths.items()}
    return find_files(paths) if paths else []


def _shard(params: DataConfig, context: Any) -> Shard:
    if context is None or not params.sharding:
        return Shard()
    return Shard(int(context.input_pipeline_id), int(context.num_input_pipelines))


def _reading(params: DataConfig, context: Any) -> Reading:
    training = bool(params.is_training)
    return Reading(
        batch_size=_batch_size(params.global_batch_size, 1 if context is None else int(context.num_replicas_in_sync)),
        drop_remainder=training if params.drop_remainder is None else params.drop_remainder,
        shuffle=training,
        shuffle_buffer=params.shuffle_buffer_size,
        seed=params.seed or 0,
        repeat=training if params.repeat is None else params.repeat,
        cache=params.cache,
        prefetch=params.prefetch_buffer_size,
        ram_budget=params.ram_budget,
        autotune_algorithm=params.autotune_algorithm,
    )


def _batch_size(total: int, replicas: int) -> int:
    if total % replicas:
        text = f"received {total}, which {replicas} replicas cannot share evenly; take a multiple of {replicas}"
        raise ConfigError([Problem("global_batch_size", text)])
    return total // replicas
