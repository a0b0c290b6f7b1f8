"""How many steps an epoch of `fit` has, whatever the data knows of itself."""

from collections.abc import Sized
from typing import Any

from everstep.data.counted import CountedStream
from everstep.data.iterables import IterableStream
from everstep.data.limited import LimitedStream
from everstep.data.stream import Stream
from everstep.errors import UsageError
from everstep.loop.epoch_lengths import EpochLengths


def counted(stream: Stream, data: Any, steps: int | None) -> tuple[Stream, EpochLengths]:
    """Returns the training stream such that its first pass counts batches nobody knows of, and where epochs end.

    Args:
      stream: The stream.
      data: What it was made of: a PyTorch DataLoader says how many batches it has.
      steps: `steps_per_epoch`.

    Raises:
      UsageError: The data has no end, and nobody said how many steps an epoch has.
    """
    if stream.infinite:
        if steps is None:
            raise UsageError(
                "steps_per_epoch: the data has no end, so an epoch has none either: pass steps_per_epoch=…"
            )
        return stream, EpochLengths(steps)
    if stream.batches_per_epoch is not None:
        return stream, EpochLengths(steps, stream.batches_per_epoch)
    batches = _said_length(data)
    return (CountedStream(stream), EpochLengths(steps)) if batches is None else (stream, EpochLengths(steps, batches))


def _said_length(data: Any) -> int | None:
    try:
        return len(data) if isinstance(data, Sized) else None
    except (TypeError, NotImplementedError):  # a DataLoader of an IterableDataset
        return None


def read_once_for_evaluations(data: Any, steps: int | None, evaluations: int) -> Stream:
    """Returns a stream over a generator for evaluations, each of which reads on where the one before has ended.

    Args:
      data: The generator, or another iterator.
      steps: Batches of an evaluation; None for all there are.
      evaluations: How many there will be.

    Raises:
      UsageError: The first of several would read all of it.
    """
    stream = IterableStream(data, reads_on=True)
    if steps is not None:
        return LimitedStream(stream, steps)
    if evaluations > 1:
        raise UsageError(
            f"validation_data: a {type(data).__name__} can be read only once, but there are {evaluations} evaluations: "
            "pass the function that makes it, without calling it, or validation_steps=…, batches of each evaluation"
        )
    return stream
