"""Learning rates along several cosines: restarts, and one for each interval.

Both look the interval of a step up in a table. That is exact where a logarithm would take the last step of one
interval for the first of the next.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

_LAST_STEP = 2**31


def _half_cosine(position: Any) -> Any:
    """Returns a fall from 1 to 0 as `position` goes from 0 to 1."""
    return 0.5 * (1.0 + ops.cos(math.pi * position))


def _interval(step: Any, starts: Sequence[float]) -> Any:
    """Returns the index of the interval in which `step` is, given where each starts."""
    begun = ops.greater_equal(step, ops.convert_to_tensor(list(starts), dtype="float32"))
    return ops.maximum(ops.sum(ops.cast(begun, "int32")) - 1, 0)


def _entry(values: Sequence[float], index: Any) -> Any:
    return ops.take(ops.convert_to_tensor(list(values), dtype="float32"), index)


@keras.saving.register_keras_serializable(package="everstep")
class CosineRestarts(keras.optimizers.schedules.LearningRateSchedule):
    """Half a cosine, then another one `t_mul` times as long that starts `m_mul` times as high, and so on."""

    def __init__(
        self,
        initial_learning_rate: float,
        first_decay_steps: int,
        t_mul: float = 2.0,
        m_mul: float = 1.0,
        alpha: float = 0.0,
    ) -> None:
        super().__init__()
        self.initial_learning_rate = initial_learning_rate
        self.first_decay_steps = first_decay_steps
        self.t_mul = t_mul
        self.m_mul = m_mul
        self.alpha = alpha

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        step = ops.maximum(ops.cast(step, "float32"), 0.0)
        restarts, position = self._even(step) if self.t_mul == 1 else self._growing(step)
        height = ops.power(float(self.m_mul), ops.cast(restarts, "float32"))
        fallen = (1.0 - self.alpha) * height * _half_cosine(position) + self.alpha
        return self.initial_learning_rate * fallen

    def _even(self, step: Any) -> tuple[Any, Any]:
        """Returns the number of restarts and the position in the cosine, where all are equally long."""
        since = ops.mod(step, float(self.first_decay_steps))
        return (step - since) / self.first_decay_steps, since / self.first_decay_steps

    def _growing(self, step: Any) -> tuple[Any, Any]:
        starts, lengths = [0.0], [float(self.first_decay_steps)]
        while starts[-1] < _LAST_STEP:
            starts.append(starts[-1] + lengths[-1])
            lengths.append(lengths[-1] * self.t_mul)
        index = _interval(step, starts)
        return index, (step - _entry(starts, index)) / _entry(lengths, index)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        names = ("initial_learning_rate", "first_decay_steps", "t_mul", "m_mul", "alpha")
        return {name: getattr(self, name) for name in names}


@keras.saving.register_keras_serializable(package="everstep")
class StepCosine(keras.optimizers.schedules.LearningRateSchedule):
    """From one value to the next along half a cosine in each interval, and constant after the last.

    The first interval starts at step 0, which may be the first boundary, the others at the boundaries. `values` has the
    rate at the start of each interval and, if it is one longer, the rate at the last boundary; that is 0 otherwise.
    """

    def __init__(self, boundaries: Sequence[int], values: Sequence[float]) -> None:
        super().__init__()
        self.boundaries = list(boundaries)
        self.values = list(values)

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        ends = [step for step in self.boundaries if step > 0]
        starts = [0, *ends[:-1]]
        rates = [*self.values, 0.0][: len(ends) + 1]
        step = ops.clip(ops.cast(step, "float32"), 0.0, float(ends[-1]))
        index = _interval(step, starts)
        begin, end = _entry(starts, index), _entry(ends, index)
        high, low = _entry(rates[:-1], index), _entry(rates[1:], index)
        return low + (high - low) * _half_cosine((step - begin) / (end - begin))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {"boundaries": self.boundaries, "values": self.values}
