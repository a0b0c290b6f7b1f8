"""A replica's part of a step under `tf.distribute`: what its loss weighs, and whose gradients it has seen."""

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import keras
import tensorflow as tf

from everstep.errors import UsageError


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
                f"task_routines: replicas cannot take the same part of batches of {sizes} samples: choose for each "
                "task_config.train_data.global_batch_size a multiple of the number of replicas"
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
