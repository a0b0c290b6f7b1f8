"""The data that a run of `fit` was validated on, opened again where its record names it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from everstep.data import DataConfig, Stream, make_stream, named_path, open_source
from everstep.data.images import ImageSource
from everstep.errors import UsageError
from everstep.trained.inputs import Rows, Spec

SOURCES = "sources"
"""The entry of `run.json` that names the data."""


class RecordedData:
    """Batches of the inputs and labels that a run was validated on, in their order.

    Args:
      record: The run's record.
      specs: The model's inputs.

    Attributes:
      description: What is read, for people.
      class_names: The names of the classes; empty where there are none.
      names: The names of the samples; None where they have none.
      count: The number of samples.

    Raises:
      UsageError: The record names no validation data, it is not there any more, or the model has several inputs.
    """

    def __init__(self, record: Mapping[str, Any], specs: Sequence[Spec]) -> None:
        named = recorded_source(record)
        if named is None or len(specs) != 1:
            raise UsageError("cannot be read from the record of the run", key="--input", remedy="name the data")
        try:
            source = open_source(named)
        except UsageError as error:
            raise UsageError(
                f"is not given, and what the run was validated on cannot be read: {error}",
                key="--input",
                remedy="name the data",
            ) from error
        self._spec, self._source = specs[0], source
        self._config = DataConfig(is_training=False, drop_remainder=False)
        is_part = isinstance(source, ImageSource) and bool(source.config.validation_split)
        if isinstance(source, ImageSource) and not is_part:
            self._config = self._config.replace(limit_batches=source.config.limit_batches)
            self._config = self._config.replace(global_batch_size=source.config.global_batch_size)
        self.count = len(source.subset(False) if isinstance(source, ImageSource) else source)
        if (limit := self._config.limit_batches) is not None:
            self.count = min(self.count, limit * self._config.global_batch_size)
        part = ", the part that training left out" if is_part else ""
        self.description = f"{named_path(named)!r}{part}"
        stream = self._stream(self._config.global_batch_size)
        ids = stream.sample_ids()
        self.names = None if ids is None else list(ids)
        self.class_names = list(stream.classes)

    @property
    def source(self) -> "RecordedData":
        """The inputs, with their names."""
        return self

    def batches(self, size: int) -> Iterator[tuple[Sequence[Any], list[np.ndarray], np.ndarray]]:
        """Yields the names, the inputs and the labels of at most `size` samples at a time."""
        done = 0
        for batch in self._stream(size if self._config.limit_batches is None else self._config.global_batch_size):
            inputs, labels = batch
            count = len(labels)
            ids = range(done, done + count) if self.names is None else self.names[done : done + count]
            yield ids, [self._spec.cast(np.asarray(inputs))], np.asarray(labels)
            done += count

    def _stream(self, size: int) -> Stream:
        return make_stream(self._source, self._config.replace(global_batch_size=size), training=False, seed=0)


class RecordedInputs:
    """The inputs alone, for predictions.

    Args:
      data: The data.
    """

    def __init__(self, data: RecordedData) -> None:
        self._data = data
        self.count: int | None = data.count

    def batches(self, size: int) -> Iterator[Rows]:
        """Yields the names and the inputs of at most `size` samples at a time."""
        return ((ids, inputs) for ids, inputs, _ in self._data.batches(size))


def recorded_source(record: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Returns the entry of the record that names what the run was validated on; None if it names none."""
    sources = record.get(SOURCES)
    found = sources.get("validation") if isinstance(sources, Mapping) else None
    return found if isinstance(found, Mapping) else None
