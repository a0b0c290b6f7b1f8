"""One step on several devices of a machine, under a `tf.distribute` strategy.

Every replica takes its slice of the global batch. `everstep.value_and_grad` is the only place that scales a loss for
this: it weights the loss by the slice's share of the batch, so that the sum of the gradients is the gradient of the
mean, and returns that sum. Keras's own handling of replicas is disabled meanwhile (`as_on_one_device`).
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from everstep.data import nest
from everstep.engine.replaced import acting_for, replaced_in_all_threads, this_thread
from everstep.engine.shares import Share
from everstep.engine.workers import Workers
from everstep.errors import warning_text
from everstep.keras_internals import BaseOptimizer, TFOptimizer
from everstep.keras_internals import losses as keras_loss
from everstep.task import current_share, on_replica
from everstep.types import Batch

logger = logging.getLogger(__name__)


class Replicas(Workers):
    """The replicas of the `tf.distribute` strategy whose scope is active."""

    def __init__(self) -> None:
        self.strategy = tf.distribute.get_strategy()
        self.count = self.strategy.num_replicas_in_sync
        self.sees_whole_loss = self.count == 1
        self._is_first = True  # only the first batch is checked: later ones may be the rest of an epoch

    def why_not_on_device(self) -> str:
        """Returns why no data can live on the device."""
        return "on TensorFlow data lives on one device, and several share the batch" if self.count > 1 else ""

    def trace(self, step: Callable[[Batch], Mapping[str, Any]], batch: Batch) -> Mapping[str, Any]:
        """Runs a step that is being traced; returns the outputs of the first replica."""
        return {name: self.parts(value)[0] for name, value in self.run("", step, batch).items()}

    def run(self, kind: str, step: Callable[[Batch], Any], batch: Batch) -> Any:
        """Runs a step on every replica; returns its outputs, one per replica if there are several."""
        if self.count == 1:
            return self._run(step, batch)
        self._warn_if_idle(batch)
        with as_on_one_device():
            outputs = self._run(lambda whole: self._on_one(step, whole), batch)
        if outputs is None or self._can_share(batch):
            return outputs
        return nest.map_leaves(lambda value: self.parts(value)[0], outputs)

    def _run(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        """Runs a step on every replica, each of which has a thread of its own."""
        thread = this_thread()

        def replica(part: Batch) -> Any:
            with acting_for(thread):
                return step(part)

        return self.strategy.run(replica, args=(batch,))

    def parts(self, value: Any) -> tuple[Any, ...]:
        """Returns the value of each replica that had samples."""
        parts: tuple[Any, ...] = self.strategy.experimental_local_results(value)
        return parts

    def _on_one(self, step: Callable[[Batch], Any], batch: Batch) -> Any:
        context = tf.distribute.get_replica_context()
        replica = int(tf.get_static_value(context.replica_id_in_sync_group))
        if not self._can_share(batch):
            alone = ReplicaShare({(1, self.count)}, _sizes(batch)[0], counts=replica == 0, is_divided=False)
            with on_replica(alone):
                return step(batch)
        own = nest.map_leaves(lambda leaf: leaf[self._slice(leaf.shape[0], replica)], batch)
        with on_replica(ReplicaShare(set(zip(_sizes(own), _sizes(batch), strict=True)), _sizes(batch)[0])):
            return step(own)

    def _can_share(self, batch: Batch) -> bool:
        """Whether every replica gets samples; if not, all compute the whole batch, and the first one's sums count."""
        return min(_sizes(batch)) >= self.count

    def _warn_if_idle(self, batch: Batch) -> None:
        if self._is_first and not self._can_share(batch):
            text = warning_text(
                f"a batch of {min(_sizes(batch))} is too small for {self.count} replicas, so each of them computes the "
                "whole batch",
                remedy=("set a larger {batch}, also of the validation data", "use fewer devices"),
                mentions={"batch": "task.train_data.global_batch_size"},
            )
            logger.warning("%s", text)
        self._is_first = False

    def _slice(self, size: int, replica: int) -> slice:
        """Returns the part of one replica of an array; the arrays of several tasks may differ in length."""
        return slice(size * replica // self.count, size * (replica + 1) // self.count)


def _sizes(batch: Batch) -> list[int]:
    return [leaf.shape[0] for leaf in nest.flatten(batch)]


class ReplicaShare(Share):
    """The share of one replica in one step."""

    def _sum(self, gradients: list[Any]) -> list[Any]:
        return _reduced(tf.distribute.ReduceOp.SUM, gradients)

    def _make_alike(self, gradients: list[Any]) -> list[Any]:
        return _reduced(tf.distribute.ReduceOp.MEAN, gradients)


def _reduced(how: Any, gradients: list[Any]) -> list[Any]:
    return list(tf.distribute.get_replica_context().all_reduce(how, gradients))


# -- Keras on several replicas ----------------------------------------------------------------------------------------

# While a step is traced (`as_on_one_device`), and only on the threads of replicas, Keras computes as on one device:
#
# - Keras's loss objects divide by the number of replicas; plain functions do not. Here neither does, unless a step
#   follows Keras's rules (`everstep.task.grad.losses_divided_by_keras`).
# - Keras's optimizers clip the gradients of each replica, and check those of the first replica for overflows, before
#   they sum. Here they get the sum.
# - They accumulate gradients inside a `cond` on every replica, which `tf.distribute` does not support. Here the `cond`
#   is around the replicas.


@contextlib.contextmanager
def as_on_one_device() -> Iterator[None]:
    """Replaces the functions of Keras that handle replicas inside the block.

    In all threads: TensorFlow starts further ones for an update.
    """
    with contextlib.ExitStack() as stack:
        for owner, name, make in _CHANGES:
            stack.enter_context(replaced_in_all_threads(owner, name, make))
        yield


def _scaled(original: Any) -> Callable[[Any], Any]:
    return lambda loss: loss * share.weight if (share := _share()) and share.divides_losses else loss


def _unscaled(original: Any) -> Callable[[Any], Any]:
    return lambda loss: loss / share.weight if (share := _share()) and share.divides_losses else loss


def _of_sums(original: Any) -> Callable[..., None]:
    """Makes `apply` sum the gradients first; wrapped optimizers get the sum."""

    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any] | None = None) -> None:
        share = _share()
        if share is not None and len(grads):
            given = self._trainable_variables if trainable_variables is None else list(trainable_variables)
            grads = share.ready(list(grads), given)
        with on_replica(None):
            original(self, grads, trainable_variables)

    return apply


def _once(original: Any) -> Callable[..., Any]:
    return lambda self, grads_and_vars: list(grads_and_vars)


def _accumulating(original: Any) -> Callable[..., None]:
    def apply(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any]) -> None:
        if not self.gradient_accumulation_steps or self.use_ema:
            original(self, grads, trainable_variables)
            return
        sums = [self._accumulated_gradients[self._get_variable_index(v)] for v in trainable_variables]
        tf.distribute.get_replica_context().merge_call(
            lambda strategy, new: _accumulate(self, strategy, new, sums, trainable_variables),
            args=(list(grads),),
        )

    return apply


def _accumulate(optimizer: Any, strategy: Any, new: list[Any], sums: list[Any], variables: Sequence[Any]) -> None:
    """Adds gradients to the accumulated ones, or updates with their mean; called once for all replicas."""

    def update(gradients: list[Any]) -> None:
        count = optimizer.gradient_accumulation_steps
        means = optimizer._clip_gradients([(g + h) / count for g, h in zip(gradients, sums, strict=True)])
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(means, variables, optimizer.learning_rate)

    def update_all() -> None:
        strategy.extended.call_for_each_replica(update, args=(new,))
        for variable in sums:
            strategy.extended.update(variable.value, lambda v: v.assign(tf.zeros_like(v)), group=False)

    def add_all() -> None:
        for variable, gradient in zip(sums, new, strict=True):
            strategy.extended.update(variable.value, lambda v, g: v.assign_add(g), args=(gradient,), group=False)

    is_due = (optimizer._iterations + 1) % optimizer.gradient_accumulation_steps == 0
    keras.ops.cond(is_due, update_all, add_all)


def _counting(original: Any) -> Callable[..., None]:
    """Keeps a replica that has the samples of another one from adding to the sums twice."""

    def assign(self: Any, value: Any) -> None:
        share = _share()
        if share is None or share.counts or self.synchronization != "on_read":
            original(self, value)

    return assign


def _share() -> ReplicaShare | None:
    share = current_share()
    return share if isinstance(share, ReplicaShare) else None


_CHANGES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (keras_loss, "scale_loss_for_distribution", _scaled),
    (keras_loss, "unscale_loss_for_distribution", _unscaled),
    (BaseOptimizer, "apply", _of_sums),
    (keras.optimizers.LossScaleOptimizer, "_tf_apply", _of_sums),
    (TFOptimizer, "_all_reduce_sum_gradients", _once),
    (BaseOptimizer, "_backend_apply_gradients", _accumulating),
    (keras.Variable, "_direct_assign", _counting),
)
