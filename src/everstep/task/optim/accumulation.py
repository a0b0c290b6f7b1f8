"""Gradient accumulation in which each batch counts by its tokens, or its samples.

Keras adds up the gradients of `gradient_accumulation_steps` batches and divides by their number: a mean of means, in
which a token of a short batch counts more than one of a long batch. Here each gradient is multiplied by how much its
batch counts, and the sum is divided by the sum of these weights, before it is clipped. So k small batches give the
update of the one large batch that contains their samples.

The sum of the weights is a variable of the optimizer: a run that is killed in the middle of an accumulation resumes
there. Where all batches count the same, the results are those of Keras, bit by bit.
"""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
from keras import ops

TOTAL = "accumulated_weight"
"""The name of the variable with the sum of the weights so far."""

_batch = threading.local()


@contextlib.contextmanager
def batch_counts(weight: Any) -> Iterator[None]:
    """Inside the block gradients are those of a batch that counts so much: a number, or a scalar tensor.

    An engine enters it around a training step, with the weight of the whole batch, also on one of several replicas.
    """
    before, _batch.weight = getattr(_batch, "weight", 1.0), weight
    try:
        yield
    finally:
        _batch.weight = before


def weigh_batches(optimizer: Any) -> None:
    """Makes an optimizer, and those it wraps, weigh the batches whose gradients it accumulates.

    Nothing changes for one that does not accumulate.
    """
    while isinstance(optimizer, keras.optimizers.Optimizer):
        if optimizer.gradient_accumulation_steps and not hasattr(optimizer, "_accumulated_weight"):
            _weigh(optimizer)
        optimizer = getattr(optimizer, "inner_optimizer", None)


def _weigh(optimizer: keras.optimizers.Optimizer) -> None:
    steps = optimizer.gradient_accumulation_steps
    total = optimizer.add_variable((), "zeros", "float32", aggregation="only_first_replica", name=TOTAL)
    clip = optimizer._clip_gradients

    def apply(grads: Sequence[Any], trainable_variables: Sequence[Any]) -> Any:
        weight = getattr(_batch, "weight", 1.0)
        is_first = ops.equal(optimizer._iterations % steps, 0)
        total.assign(ops.where(is_first, ops.zeros(()), total.value) + ops.convert_to_tensor(weight, "float32"))
        if not (isinstance(weight, float) and weight == 1.0):
            grads = [grad * ops.cast(weight, grad.dtype) for grad in grads]
        # By the class: on replicas of TensorFlow the method is another one while a step is traced.
        return type(optimizer)._backend_apply_gradients(optimizer, grads, trainable_variables)

    def clip_mean(grads: Sequence[Any]) -> Any:
        """Turns Keras's mean over the steps into that over the weights, then clips it."""
        mean = ops.where(total.value > 0.0, float(steps) / ops.maximum(total.value, 1e-30), ops.zeros(()))
        return clip([grad * ops.cast(mean, grad.dtype) for grad in grads])

    changed = {"_accumulated_weight": total, "_backend_apply_gradients": apply, "_clip_gradients": clip_mean}
    for name, value in changed.items():
        object.__setattr__(optimizer, name, value)
