"""Keras on several replicas of `tf.distribute`: what it does otherwise than on one device, it does not do here.

- Its loss objects divide by the number of replicas; plain functions do not. Here neither does, unless a step is written
  by Keras's rules (`everstep.grad.losses_divided_by_keras`).
- Its optimizers clip what a replica has of a gradient, and look for overflows in what the first replica has of it,
  before they sum. Here they get the sum.
- They accumulate gradients inside a `cond` on every replica, which `tf.distribute` refuses. Here the `cond` is around
  the replicas.

All of it holds while a step is traced (`as_on_one_device`), and on the threads of replicas alone.
"""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import keras.src.losses.loss as keras_loss
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from everstep.engine.share import Share
from everstep.grad import current_share, on_replica


@contextlib.contextmanager
def as_on_one_device() -> Iterator[None]:
    """Changes Keras for the time of the block."""
    with contextlib.ExitStack() as stack:
        for owner, name, make in _CHANGES:
            original = getattr(owner, name)
            stack.callback(setattr, owner, name, original)
            setattr(owner, name, make(original))
        yield


def _scaled(original: Any) -> Callable[[Any], Any]:
    return lambda loss: loss * share.weight if (share := _share()) and share.divides_losses else loss


def _unscaled(original: Any) -> Callable[[Any], Any]:
    return lambda loss: loss / share.weight if (share := _share()) and share.divides_losses else loss


def _of_sums(original: Any) -> Callable[..., None]:
    """Makes `apply` sum the gradients first; optimizers inside this one get them as they are."""

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
        held = [self._accumulated_gradients[self._get_variable_index(v)] for v in trainable_variables]
        tf.distribute.get_replica_context().merge_call(
            lambda strategy, new: _accumulate(self, strategy, new, held, trainable_variables), args=(list(grads),)
        )

    return apply


def _accumulate(optimizer: Any, strategy: Any, new: list[Any], held: list[Any], variables: Sequence[Any]) -> None:
    """Adds gradients to those held, or updates with the mean of both; called once for all replicas."""

    def update(gradients: list[Any]) -> None:
        count = optimizer.gradient_accumulation_steps
        means = optimizer._clip_gradients([(g + h) / count for g, h in zip(gradients, held, strict=True)])
        optimizer._apply_weight_decay(variables)
        optimizer._backend_update_step(means, variables, optimizer.learning_rate)

    def update_all() -> None:
        strategy.extended.call_for_each_replica(update, args=(new,))
        for variable in held:
            strategy.extended.update(variable.value, lambda v: v.assign(tf.zeros_like(v)), group=False)

    def add_all() -> None:
        for variable, gradient in zip(held, new, strict=True):
            strategy.extended.update(variable.value, lambda v, g: v.assign_add(g), args=(gradient,), group=False)

    is_due = (optimizer._iterations + 1) % optimizer.gradient_accumulation_steps == 0
    keras.ops.cond(is_due, update_all, add_all)


def _counting(original: Any) -> Callable[..., None]:
    """Keeps a replica that has the samples of another from adding to the sums of both."""

    def assign(self: Any, value: Any) -> None:
        share = _share()
        if share is None or share.counts or self.synchronization != "on_read":
            original(self, value)

    return assign


def _share() -> Share | None:
    share = current_share()
    return share if isinstance(share, Share) else None


_CHANGES: tuple[tuple[Any, str, Callable[[Any], Any]], ...] = (
    (keras_loss, "scale_loss_for_distribution", _scaled),
    (keras_loss, "unscale_loss_for_distribution", _unscaled),
    (BaseOptimizer, "apply", _of_sums),
    (keras.optimizers.LossScaleOptimizer, "_tf_apply", _of_sums),
    (TFOptimizer, "_all_reduce_sum_gradients", _once),
    (BaseOptimizer, "_backend_apply_gradients", _accumulating),
    (keras.Variable, "_direct_assign", _counting),
)
