"""One step on several devices of a machine, under a `tf.distribute` strategy.

Every replica takes its slice of the global batch. The one place where a loss is scaled for that is
`everstep.value_and_grad`, which weighs it by the slice's share of the batch, so that the sum of the gradients is the
gradient of the mean; it returns that sum. What Keras would do for several replicas is switched off meanwhile
(`as_on_one_device`).
"""

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import keras
import keras.src.losses.loss as keras_loss
import tensorflow as tf
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.optimizers.base_optimizer import BaseOptimizer

from everstep.data import nest
from everstep.errors import UsageError
from everstep.task.grad import current_share, on_replica
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


class Share:
    """What one replica does of one step.

    Gradients are summed over the replicas once: those that `everstep.value_and_grad` takes when it takes them, those
    of another tape when they are applied. Which is which is told by the tensor, and, where somebody has clipped it, by
    the variable.

    Args:
      parts: How many it has of how many samples; of each task, where a batch is of several.
      counts: Whether its metrics and sums count; False where another replica has the same samples.
    """

    def __init__(self, parts: set[tuple[int, int]], counts: bool = True) -> None:
        self._parts = parts
        self.counts = counts
        self.divides_losses = False
        self._summed: dict[int, Any] = {}
        self._waiting: set[int] = set()  # variables whose summed gradients were not applied yet

    @property
    def weight(self) -> float:
        """The part of the global batch that this replica works on.

        Raises:
          UsageError: It is another for each task.
        """
        weights = {Fraction(own, whole) for own, whole in self._parts}
        if len(weights) > 1:
            sizes = " and ".join(str(whole) for whole in sorted({whole for _, whole in self._parts}))
            raise UsageError(
                f"replicas cannot take the same part of batches of {sizes} samples",
                key="task_routines",
                remedy="choose for each task_config.train_data.global_batch_size a multiple of the number of replicas",
            )
        return float(weights.pop())

    def sum(self, gradients: list[Any], variables: list[keras.Variable]) -> list[Any]:
        """Returns the gradients of all replicas, added up, and remembers them."""
        summed = _reduced(tf.distribute.ReduceOp.SUM, gradients)
        self._summed.update({id(gradient): gradient for gradient in summed})
        self._waiting.update(map(_key, variables))
        return summed

    def ready(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns gradients as an optimizer is to see them: of the whole batch, and the same on every replica."""
        new: dict[int, Any] = {}
        changed: dict[int, Any] = {}
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is not None and id(gradient) not in self._summed:
                (changed if _key(variable) in self._waiting else new)[index] = gradient
        self._waiting.difference_update(map(_key, variables))
        result = dict(enumerate(gradients))
        # What was made of a sum is a sum, but may differ between replicas where chance had a hand in it.
        for how, chosen in ((tf.distribute.ReduceOp.SUM, new), (tf.distribute.ReduceOp.MEAN, changed)):
            result |= dict(zip(chosen, _reduced(how, list(chosen.values())), strict=True))
        return list(result.values())


def _reduced(how: Any, gradients: list[Any]) -> list[Any]:
    return list(tf.distribute.get_replica_context().all_reduce(how, gradients)) if gradients else []


def _key(variable: Any) -> int:
    return id(variable._value if isinstance(variable, keras.Variable) else variable)


# -- Keras on several replicas ----------------------------------------------------------------------------------------

# While a step is traced (`as_on_one_device`), and on the threads of replicas alone, Keras computes as on one device:
#
# - Its loss objects divide by the number of replicas; plain functions do not. Here neither does, unless a step is
#   written by Keras's rules (`everstep.task.grad.losses_divided_by_keras`).
# - Its optimizers clip what a replica has of a gradient, and look for overflows in what the first replica has of it,
#   before they sum. Here they get the sum.
# - They accumulate gradients inside a `cond` on every replica, which `tf.distribute` refuses. Here the `cond` is around
#   the replicas.


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
