"""Small tasks for tests, and a rig that runs one on an engine.

with running(create_engine, Regression(), models.mlp()) as rig:
    rig.run(100)
    assert rig.engine.read("train")["loss"] < 1
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from everstep import Stream, Task
from everstep.checkpoint import digest
from everstep.data import ArrayStream
from everstep.engine import Engine, Feed, backend
from everstep.testing import models
from everstep.types import Batch, Logs

Make = Callable[[Task, keras.Model, Any], Engine]
"""Creates the engine under test, such as `everstep.engine.backend.create_engine`."""


class Regression(Task):
    """The mean squared error of one number per sample; keyword arguments become attributes of the task."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        for name, value in attributes.items():
            setattr(self, name, value)

    def build_inputs(self, params: Any, input_context: Any = None) -> Any:
        """Returns None: tests pass their data to the engine."""
        return None

    def build_losses(
        self, labels: Any, model_outputs: Any, aux_losses: Sequence[Any] | None = None, sample_weight: Any = None
    ) -> Any:
        """Returns the mean squared error and the model's own losses."""
        errors = ops.mean(ops.square(ops.cast(labels, model_outputs.dtype) - model_outputs), axis=-1)
        errors = errors if sample_weight is None else errors * sample_weight
        return ops.mean(errors) + sum(ops.sum(loss) for loss in aux_losses or [])

    def build_metrics(self, training: bool = True) -> list[keras.Metric]:
        """Returns the mean absolute error."""
        return [keras.metrics.MeanAbsoluteError(name="mae")]


class Scripted(Regression):
    """A task whose train step is the given function of `(task, inputs, model, optimizer, metrics)`."""

    def __init__(self, step: Callable[..., Any], **attributes: Any) -> None:
        super().__init__(**attributes)
        self._step = step

    def train_step(self, inputs: Batch, model: keras.Model, optimizer: Any, metrics: Any) -> Any:
        """Calls the function."""
        return self._step(self, inputs, model, optimizer, metrics)


@dataclasses.dataclass
class Rig:
    """A built engine with data to run on."""

    engine: Engine
    stream: Stream
    feed: Feed

    def run(self, *lengths: int) -> None:
        """Trains that many steps, in as many runs."""
        for length in lengths:
            assert self.engine.run(self.feed, length) == length

    def evaluate(self, data: Batch, batch_size: int = 4, n: int = -1, on_device: bool = False) -> Logs:
        """Evaluates arrays in order; `on_device` places them there first."""
        stream = ArrayStream(data, batch_size)
        if on_device:
            self.engine.place_on_device("validation", stream)
        with opened(self.engine, stream, "validation") as feed:
            return self.engine.evaluate(feed, n)[0]

    def digest(self) -> str:
        """Returns the hash of the whole state."""
        return digest(self.engine.state())

    def value(self, ending: str) -> np.ndarray:
        """Returns the one state value whose key ends so."""
        found = {key: value for key, value in self.engine.state().items() if key.endswith(ending)}
        assert len(found) == 1, sorted(found) or sorted(self.engine.state())
        return next(iter(found.values()))


@contextlib.contextmanager
def opened(engine: Engine, stream: Stream, kind: str = "train") -> Iterator[Feed]:
    """Yields a feed that is closed afterwards."""
    feed = engine.feed(stream, kind=kind)
    try:
        yield feed
    finally:
        feed.close()


@contextlib.contextmanager
def running(
    make: Make,
    task: Task,
    model: keras.Model,
    optimizer: Any = "adam",
    data: Batch | Stream | None = None,
    batch_size: int = 4,
    long_calls: bool = False,
    on_device: bool = False,
) -> Iterator[Rig]:
    """Yields a built engine on repeated, unshuffled data.

    Args:
      make: Creates the engine.
      task: The task whose steps run.
      model: The model to train.
      optimizer: The model's optimizer; `adam` for Adam(1e-2).
      data: Arrays, or a stream; by default 480 samples for the model, 120 batches an epoch.
      batch_size: The batch size, for arrays.
      long_calls: Whether calls have many steps from the start, as if a single step had been measured to be quick.
      on_device: Whether the arrays live on the device.
    """
    optimizer = keras.optimizers.Adam(1e-2) if optimizer == "adam" else optimizer
    data = models.samples(model, 480) if data is None else data
    stream = data if isinstance(data, Stream) else ArrayStream(data, batch_size, repeat=True)
    engine = make(task, model, optimizer)
    engine.build(stream.peek(), stream.peek())
    while long_calls and engine.call_length.measuring:
        engine.call_length.record(1e-4)
    if on_device and isinstance(stream, ArrayStream):
        engine.place_on_device("train", stream)
    with opened(engine, stream) as feed:
        yield Rig(engine, stream, feed)
        engine.push()  # as a trainer does at its end


def seeded(build: Callable[[], keras.Model], seed: int = 0) -> keras.Model:
    """Returns a model that starts from weights of this seed."""
    backend.prepare(seed)
    return build()
