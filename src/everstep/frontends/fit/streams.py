"""The batches of x and of `validation_data`, as `fit` reads them.

A source with a configuration of its own, such as `ImageSource`, is read as that says; what contradicts the arguments of
`fit` is refused.
"""

import contextlib
import dataclasses
import logging
import warnings
from collections.abc import Callable, Mapping, Sized
from typing import Any

import keras

from everstep.data import (
    CountedStream,
    DataConfig,
    EmptyDataError,
    GrainStream,
    IterableStream,
    LimitedStream,
    MappedStream,
    Stream,
    class_weighted,
    is_one_shot,
    make_stream,
    makes_batches,
    nest,
)
from everstep.data.images import ImageDataConfig, ImageSource
from everstep.errors import UsageError, problems_under
from everstep.frontends.fit.arguments import Counts
from everstep.frontends.fit.preprocessing import preprocessed
from everstep.frontends.fit.samples import samples_in

logger = logging.getLogger(__name__)


_DEFAULT = DataConfig()


def train_stream(
    model: keras.Model,
    data: Any,
    counts: Counts,
    shuffle: bool,
    class_weight: Mapping[int, float] | None,
    seed: int,
) -> tuple[Stream, DataConfig]:
    """Returns the batches to train on, and how they are read.

    Raises:
      UsageError: The data cannot be read, or its own configuration contradicts the arguments.
    """
    own = _own_config(data)
    _refuse_rival("batch_size", counts.batch_size, own, "x")
    config = _as_configured(own, counts.size(samples_in(data), own.global_batch_size), True, "x")
    reading = config.replace(repeat=False) if is_one_shot(data) else config
    stream = make_stream(data, reading, training=True, seed=seed, shuffle=shuffle)
    _warn_of_own_batches("batch_size", counts.batch_size, data, stream)
    stream = preprocessed(stream, model, data)
    weighted = MappedStream(stream, class_weighted(class_weight), keeps_labels=True) if class_weight else stream
    return weighted, config


def validation_stream(
    model: keras.Model, data: Any, counts: Counts, train: DataConfig, seed: int, is_validated: Callable[[int], bool]
) -> tuple[Stream | None, DataConfig]:
    """Returns the batches to evaluate, and how they are read; None if there are none: as in Keras, that is no error.

    Raises:
      UsageError: The data cannot be read, has no end, or the first of several evaluations would read all of it; or its
        own configuration contradicts the arguments.
    """
    nothing = None, _as_configured(_DEFAULT, train.global_batch_size, False, "validation_data")
    if data is None:
        return nothing
    own = _own_config(data)
    _refuse_rival("validation_batch_size", counts.validation_batch_size, own, "validation_data")
    if own.global_batch_size != _DEFAULT.global_batch_size:
        counts = dataclasses.replace(counts, batch_size=own.global_batch_size)
    try:
        size = counts.validation_size(samples_in(data))
        config = _as_configured(own, size, False, "validation_data")
        stream = _evaluated_stream(data, counts, config, seed, is_validated)
        _read_first(stream)
    except EmptyDataError:
        logger.warning("validation_data is empty: nothing is evaluated")
        return nothing
    _warn_of_own_batches("validation_batch_size", counts.validation_batch_size, data, stream)
    return preprocessed(stream, model, data), config


def _own_config(source: Any) -> DataConfig:
    """Returns the configuration of a source that has one, else the default."""
    return source.config if isinstance(source, ImageSource) else _DEFAULT


def _refuse_rival(name: str, size: int | None, own: DataConfig, what: str) -> None:
    """Refuses a batch size beside another one in the configuration of the data."""
    if size is not None and own.global_batch_size not in (size, _DEFAULT.global_batch_size):
        raise UsageError(
            f"the {type(own).__name__} of {what} has global_batch_size={own.global_batch_size}",
            key=name,
            received=size,
            remedy="set one of them",
        )


def _as_configured(own: DataConfig, batch_size: int, training: bool, what: str) -> DataConfig:
    """Returns how data is read: as its own configuration says; the last short batch is kept where that says nothing.

    Raises:
      UsageError: It is configured for another use.
    """
    if not training and isinstance(own, ImageDataConfig) and own.validation_split:  # it says how the other part is read
        own = DataConfig()
    for key in ("is_training", "repeat"):
        value = getattr(own, key)
        if value not in (None, training):
            use = "to train on" if training else "to evaluate"
            remedy = "leave it out: fit decides it"
            raise UsageError(f"{what} is the data {use}", key=f"{what}.{key}", received=value, remedy=remedy)
    return DataConfig(
        global_batch_size=batch_size,
        is_training=training,
        drop_remainder=bool(own.drop_remainder),
        limit_batches=own.limit_batches,
        seed=own.seed,
    )


def _warn_of_own_batches(name: str, size: int | None, data: Any, stream: Stream) -> None:
    """Warns where the data has batches of its own, so that a batch size changes nothing."""
    if size is None:
        return
    own = makes_batches(data)
    if isinstance(stream, GrainStream) and stream.batches_per_epoch != 1:  # only its first element shows what it has
        own = len(nest.flatten(stream.peek())[0]) != size
    if own:
        warnings.warn(f"{name}={size} is not used: the {type(data).__name__} makes its own batches", stacklevel=4)


def _evaluated_stream(
    data: Any, counts: Counts, config: DataConfig, seed: int, is_validated: Callable[[int], bool]
) -> Stream:
    """Returns the batches to evaluate; each evaluation of a generator continues where the one before has ended."""
    if not is_one_shot(data):
        stream = make_stream(data, config, training=False, seed=seed, shuffle=False)
        if counts.validation_steps is None and stream.epoch_never_ends:
            raise UsageError(
                "the validation data has no end", key="validation_steps", remedy="pass the batches to evaluate"
            )
        return stream
    stream = IterableStream(data, reads_on=True)
    if counts.validation_steps is not None:
        return LimitedStream(stream, counts.validation_steps)
    evaluations = sum(map(is_validated, range(counts.initial_epoch, counts.epochs)))
    if evaluations > 1:
        raise UsageError(
            f"a {type(data).__name__} can be read only once, but there are {evaluations} evaluations",
            key="validation_data",
            remedy="pass the function that makes it, without calling it, or validation_steps=…, batches of each",
        )
    return stream


def _read_first(stream: Stream) -> None:
    """Reads the first batch to evaluate, which the stream keeps.

    Raises:
      EmptyDataError: There is none.
      UsageError: It cannot be read.
    """
    try:
        stream.peek()
    except EmptyDataError:
        raise
    except UsageError as error:
        raise UsageError(problems_under("validation_data", error)) from error


def counted(stream: Stream, data: Any, steps: int | None) -> tuple[Stream, int | None]:
    """Returns the stream and the batches per epoch; if their number is unknown, the first pass counts them.

    Args:
      stream: The training stream.
      data: The source of the stream; a PyTorch DataLoader knows its number of batches.
      steps: `steps_per_epoch`.

    Raises:
      UsageError: The data has no end, and there is no `steps_per_epoch`.
    """
    if stream.epoch_never_ends:
        if steps is None:
            raise UsageError(
                "the data has no end, so an epoch has none either",
                key="steps_per_epoch",
                remedy="pass steps_per_epoch=…",
            )
        return stream, None
    batches = stream.batches_per_epoch
    if batches is None:
        with contextlib.suppress(TypeError, NotImplementedError):  # a DataLoader of an IterableDataset
            batches = len(data) if isinstance(data, Sized) else None
    return stream if batches is not None else CountedStream(stream), batches
