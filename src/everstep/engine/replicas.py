"""One step on several devices of a machine, under a `tf.distribute` strategy.

Every replica takes its slice of the global batch. The one place where a loss is scaled for that is
`everstep.value_and_grad`, which weighs it by the slice's share of the batch, so that the sum of the gradients is the
gradient of the mean; it returns that sum. What Keras would do for several replicas is switched off meanwhile
(`everstep.engine.replica_keras`).
"""

import logging
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from everstep.data import nest
from everstep.engine.replica_keras import as_on_one_device
from everstep.engine.share import Share
from everstep.grad import on_replica
from everstep.types import Batch

logger = logging.getLogger(__name__)


class Replicas:
    """The replicas of the strategy in whose scope it is made; one, where there is none."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.get_strategy()
        self.count = self.strategy.num_replicas_in_sync
        self._is_alone = not tf.distribute.has_strategy()
        self._is_first = True  # later batches may be the rest of an epoch

    def run(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        """Runs a step on every replica; returns what it returned, per replica where there are several."""
        if self._is_alone:  # a strategy of one device wants its own context all the same
            return step(batch)
        if self.count == 1:
            return self.strategy.run(step, args=(batch,))
        self._warn_if_idle(batch)
        with as_on_one_device():
            outputs = self.strategy.run(lambda whole: self._on_one(step, whole), args=(batch,))
        if outputs is None or self._can_share(batch):
            return outputs
        return {name: self.parts(value)[:1] for name, value in outputs.items()}

    def results(self, outputs: Any) -> dict[str, tuple]:
        """Returns the outputs on the host, a tuple with one entry per replica that had samples."""
        return {name: tuple(part.numpy() for part in self.parts(value)) for name, value in outputs.items()}

    def parts(self, value: Any) -> tuple:
        """Returns what each replica returned."""
        return value if isinstance(value, tuple) else self.strategy.experimental_local_results(value)

    def _on_one(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        if not self._can_share(batch):
            with on_replica(Share({(1, self.count)}, counts=replica == 0)):
                return step(batch)
        own = nest.map_leaves(lambda leaf: leaf[self._slice(leaf.shape[0], replica)], batch)
        with on_replica(Share(set(zip(_sizes(own), _sizes(batch), strict=True)))):
            return step(own)

    def _can_share(self, batch: Batch) -> bool:
        """Whether every replica gets samples; else all take the whole batch, and the first one's sums count."""
        return min(_sizes(batch)) >= self.count

    def _warn_if_idle(self, batch: Batch) -> None:
        if self._is_first and not self._can_share(batch):
            logger.warning(
                "a batch of %d is too small for %d replicas, and each of them computes the whole: choose a larger "
                "task.train_data.global_batch_size, or that of task.validation_data, or fewer devices",
                min(_sizes(batch)),
                self.count,
            )
        self._is_first = False

    def _slice(self, size: int, replica: int) -> slice:
        """Returns a replica's part of an array; the arrays of several tasks may differ in length."""
        return slice(size * replica // self.count, size * (replica + 1) // self.count)


def _sizes(batch: Batch) -> list[int]:
    return [leaf.shape[0] for leaf in nest.flatten(batch)]
