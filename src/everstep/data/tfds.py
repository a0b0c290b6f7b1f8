"""TensorFlow Datasets that are prepared on this machine; nothing is downloaded, and no builder's code runs."""

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from everstep.data.config import DataConfig
from everstep.data.tfrecord.sources import Interleave, ReadFile, Shard, Source, arranged, first_line, read_records
from everstep.errors import UsageError, missing_extra


class TfdsSource(Source):
    """The samples of one dataset and split.

    Args:
      name: Such as `mnist`, `mnist:3.0.1` or `glue/sst2`.
      config: Split, folder and choices.
      shard: This process's part: of the files if there are enough, else of the samples.

    Raises:
      UsageError: tensorflow-datasets is not installed, the data is missing, or has no such split or feature.
    """

    def __init__(self, name: str, config: DataConfig, shard: Shard):
        try:
            self._tfds = importlib.import_module("tensorflow_datasets")
        except ImportError as error:
            raise missing_extra("tensorflow-datasets", "tfds", "tfds_name") from error
        self._name, self._config, self._shard = name, config, shard
        self._interleave = Interleave(config.cycle_length, config.block_length)
        self._builder = self._find_builder()
        self._files = len(self._split_info().file_instructions)
        self._decoders = self._skip_decoders()
        self._check_pairs()

    def records(self, random: np.random.Generator | None) -> Any:
        """Returns the samples of one pass; see `Source.records`."""
        by_file = self._shard.takes_files(self._files)
        with self._readable():
            samples = self._builder.as_dataset(
                split=self._config.tfds_split,
                shuffle_files=False,  # TFDS would shuffle by TensorFlow's global seed
                as_supervised=self._config.tfds_as_supervised,
                decoders=self._decoders,
                read_config=self._read_config(random, by_file),
            )
        return samples if by_file or self._shard.count == 1 else samples.shard(self._shard.count, self._shard.index)

    def readers(self) -> list[tuple[str, ReadFile]]:
        """Returns the files if they are TFRecord files; see `Source.readers`."""
        if self._builder.info.file_format != self._tfds.core.FileFormat.TFRECORD:
            return []
        return [(str(file), read_records()) for file in self._split_info().filepaths]

    def _read_config(self, random: np.random.Generator | None, by_file: bool) -> Any:
        def mine(files: Any) -> Any:
            files = arranged(files, random)
            return self._shard.of(files) if by_file else files

        return self._tfds.ReadConfig(
            interleave_cycle_length=self._interleave.cycle(self._files, random is not None),
            interleave_block_length=self._interleave.block_length,
            experimental_interleave_sort_fn=mine,
            assert_cardinality=self._shard.count == 1,
            try_autocache=False,
            skip_prefetch=True,
        )

    def _find_builder(self) -> Any:
        folder = self._config.tfds_data_dir or None
        read_only_builder = importlib.import_module("tensorflow_datasets.core.read_only_builder")
        try:
            with self._readable():
                return read_only_builder.builder_from_files(self._name, data_dir=folder)
        except self._tfds.core.DatasetNotFoundError as error:
            where = folder or "TensorFlow Datasets' folder (TFDS_DATA_DIR, or ~/tensorflow_datasets)"
            raise UsageError(
                f"is not in {where}",
                key="tfds_name",
                received=self._name,
                remedy=f"prepare it with tfds build or tfds.builder({self._name!r}).download_and_prepare()",
            ) from error

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """Reports in one line which prepared files are missing or invalid."""
        try:
            yield
        except (UsageError, self._tfds.core.DatasetNotFoundError):
            raise
        except Exception as error:  # TensorFlow Datasets, protocol buffers and JSON raise many kinds
            raise UsageError(
                f"cannot be read: {first_line(error)}",
                key="tfds_name",
                received=self._name,
                remedy="prepare it again, with tfds build",
            ) from error

    def _check_pairs(self) -> None:
        if self._config.tfds_as_supervised and not self._builder.info.supervised_keys:
            known = ", ".join(repr(name) for name in sorted(self._builder.info.features))
            raise UsageError(
                f"but {self._name!r} has no pairs (input, target)",
                key="tfds_as_supervised",
                received=True,
                remedy=f"remove it, and use {known}",
            )

    def _split_info(self) -> Any:
        try:
            return self._builder.info.splits[self._config.tfds_split]
        except (KeyError, ValueError, AssertionError) as error:
            known = ", ".join(repr(name) for name in self._builder.info.splits)
            raise UsageError(
                f"but {self._name!r} has {known}", key="tfds_split", received=self._config.tfds_split
            ) from error

    def _skip_decoders(self) -> dict[str, Any] | None:
        names = [name.strip() for name in self._config.tfds_skip_decoding_feature.split(",") if name.strip()]
        unknown = [name for name in names if name not in self._builder.info.features]
        if unknown:
            known = ", ".join(repr(name) for name in sorted(self._builder.info.features))
            raise UsageError(
                f"but {self._name!r} has {known}", key="tfds_skip_decoding_feature", received=", ".join(unknown)
            )
        return {name: self._tfds.decode.SkipDecoding() for name in names} or None
