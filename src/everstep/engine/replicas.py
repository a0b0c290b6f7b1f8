"""One step on several devices of a machine, under a `tf.distribute` strategy.

Every replica takes its slice of the global batch. The one place where a loss is scaled for that is
`everstep.value_and_grad`, which weighs it by the slice's share of the batch, so that the sum of the gradients is the
gradient of the mean. Keras's loss objects would divide by the number of replicas themselves, plain functions would
not: while a step is traced, Keras's division is switched off, and both forms come out alike.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras.src.losses.loss as keras_loss
import tensorflow as tf

from everstep.data import nest
from everstep.errors import UsageError
from everstep.grad import share_of_batch
from everstep.types import Batch


class Replicas:
    """The replicas of the strategy in whose scope it is made; one, where there is none."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.get_strategy()
        self.count = self.strategy.num_replicas_in_sync
        self._is_alone = not tf.distribute.has_strategy()

    def run(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        """Runs a step on every replica; returns what it returned, per replica where there are several."""
        if self._is_alone:  # a strategy of one device wants its own context all the same
            return step(batch)
        with _undivided_losses():
            return self.strategy.run(lambda whole: self._on_one(step, whole), args=(batch,))

    def results(self, outputs: Any) -> dict[str, tuple]:
        """Returns the outputs on the host, a tuple with one entry per replica each."""
        return {name: tuple(part.numpy() for part in self.parts(value)) for name, value in outputs.items()}

    def parts(self, value: Any) -> tuple:
        """Returns what each replica returned."""
        return self.strategy.experimental_local_results(value)

    def _on_one(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        size = nest.flatten(batch)[0].shape[0]
        own = nest.map_leaves(lambda leaf: leaf[self._slice(leaf.shape[0], replica)], batch)
        with share_of_batch(nest.flatten(own)[0].shape[0] / size):
            return step(own)

    def _slice(self, size: int, replica: int) -> slice:
        """Returns a replica's part of an array; the arrays of several tasks may differ in length."""
        if size < self.count:
            raise UsageError(f"a batch of {size} cannot be shared by {self.count} replicas: choose another batch size")
        return slice(size * replica // self.count, size * (replica + 1) // self.count)


@contextlib.contextmanager
def _undivided_losses() -> Iterator[None]:
    names = ("scale_loss_for_distribution", "unscale_loss_for_distribution")
    before = {name: getattr(keras_loss, name) for name in names}
    for name in names:
        setattr(keras_loss, name, lambda value: value)
    try:
        yield
    finally:
        for name, function in before.items():
            setattr(keras_loss, name, function)
