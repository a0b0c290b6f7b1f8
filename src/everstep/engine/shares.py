"""`Share`: what part of a step one of several workers has; a worker is a replica of TensorFlow, or a process.

Every worker computes its slice of the global batch. The loss of a slice counts by the slice's part of the samples, or
of what the task counts instead (`Task.batch_weight`), so that the sum of the gradients is the gradient of the mean over
the batch. `replicas.py` does this on TensorFlow, `torch_processes.py` on PyTorch; on JAX the compiler divides one
program.
"""

import abc
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import keras

from everstep.errors import UsageError


class Share(abc.ABC):
    """The share of one worker in one step.

    Gradients are summed over the workers once: those of `everstep.value_and_grad` when they are computed, others when
    they are applied. A gradient that was summed already is recognized by its tensor or, if the step has changed it, by
    its variable.

    Args:
      parts: Pairs of the samples of this worker and those of the whole batch; one pair for each task of the batch.
      samples: The samples of the whole batch; of several tasks, those of the first one.
      counts: Whether its metrics and sums count; False if another worker has the same samples, or this one has none.
      is_divided: Whether each worker has a slice; False if all of them compute the whole batch, which is too small.
    """

    def __init__(self, parts: set[tuple[int, int]], samples: int, counts: bool = True, is_divided: bool = True) -> None:
        self._parts, self.samples = parts, samples
        self.counts, self.is_divided = counts, is_divided
        self._weighed: Any = None  # the part of this worker, if the task counts something else than samples
        self.divides_losses = False
        self._summed: dict[int, Any] = {}
        self._waiting: set[int] = set()  # variables whose summed gradients were not applied yet

    def weigh(self, own: Any) -> Any:
        """Makes the slice of this worker count by its weight instead of its samples; returns that of the whole batch.

        Args:
          own: The weight of the slice, a scalar of float32. All workers call it.
        """
        if not self.is_divided:
            return own
        total = self._sum([own])[0]
        part = own / keras.ops.maximum(total, 1e-30)
        self._weighed = keras.ops.where(total > 0.0, part, keras.ops.full_like(part, self.weight))
        return total

    @property
    def weight(self) -> Any:
        """The part of the global batch that this worker works on.

        Raises:
          UsageError: The part differs between the tasks of the batch.
        """
        if self._weighed is not None:
            return self._weighed
        weights = {Fraction(own, whole) for own, whole in self._parts}
        if len(weights) > 1:
            sizes = " and ".join(str(whole) for whole in sorted({whole for _, whole in self._parts}))
            raise UsageError(
                f"replicas cannot take the same part of batches of {sizes} samples",
                key="task_routines",
                remedy="set each task_config.train_data.global_batch_size to a multiple of the number of replicas",
            )
        return float(weights.pop())

    def sum(self, gradients: list[Any], variables: list[keras.Variable]) -> list[Any]:
        """Returns the gradients of weighted losses summed over all workers, and remembers them as summed."""
        summed = self._sum(gradients) if gradients else []
        self._summed.update({id(gradient): gradient for gradient in summed})
        self._waiting.update(map(_key, variables))
        return summed

    def ready(self, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Returns gradients for an optimizer: of the whole batch, and the same on every worker."""
        new: dict[int, Any] = {}
        changed: dict[int, Any] = {}
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            if gradient is not None and id(gradient) not in self._summed:
                (changed if _key(variable) in self._waiting else new)[index] = gradient
        self._waiting.difference_update(map(_key, variables))
        result = dict(enumerate(gradients))
        # What a step computes from a sum is a sum, but may differ between workers if it draws random numbers.
        for reduce, chosen in ((self._sum_own, new), (self._make_alike, changed)):
            if chosen:
                result |= dict(zip(chosen, reduce(list(chosen.values())), strict=True))
        return list(result.values())

    @abc.abstractmethod
    def _sum(self, gradients: list[Any]) -> list[Any]:
        """Returns the sums over all workers."""

    def _sum_own(self, gradients: list[Any]) -> list[Any]:
        """Returns the sums of gradients that the step has computed without `everstep.value_and_grad`."""
        return self._sum(gradients)

    @abc.abstractmethod
    def _make_alike(self, gradients: list[Any]) -> list[Any]:
        """Returns gradients that are the same on every worker, from ones that nearly are."""


def _key(variable: Any) -> int:
    return id(variable._value if isinstance(variable, keras.Variable) else variable)
