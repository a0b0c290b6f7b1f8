"""Learning rate schedules that Keras lacks, and two that it has.

The two, `Polynomial` and `Exponential`, divide the step by a constant. Compilers multiply by the inverse instead, so
that the quotient of two equal numbers may differ slightly from 1; here, ends and boundaries are found with integers.
All schedules use `keras.ops` on the step, so that they run inside a compiled step on every backend.

`config.py` has the fields of each schedule and warmup, and `building.py` creates them from these.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

Rate = Any
"""A learning rate: a float, or a `keras.optimizers.schedules.LearningRateSchedule`."""


def rate_at(rate: Rate, step: Any) -> Any:
    """Returns the value of a learning rate at a step, also for a constant."""
    value = rate(step) if callable(rate) else rate
    return ops.cast(value, "float32")


class _Wrapper(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule around another learning rate, `schedule`."""

    def __init__(self, schedule: Rate) -> None:
        super().__init__()
        is_saved = isinstance(schedule, dict)
        self.schedule = keras.saving.deserialize_keras_object(schedule) if is_saved else schedule

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        schedule = self.schedule
        return {"schedule": keras.saving.serialize_keras_object(schedule) if callable(schedule) else schedule}


@keras.saving.register_keras_serializable(package="everstep")
class Offset(_Wrapper):
    """The wrapped schedule at `step - offset`."""

    def __init__(self, schedule: Rate, offset: int) -> None:
        super().__init__(schedule)
        self.offset = offset

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        return rate_at(self.schedule, ops.subtract(step, self.offset))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {**super().get_config(), "offset": self.offset}


@keras.saving.register_keras_serializable(package="everstep")
class TimeDecay(_Wrapper):
    """The wrapped learning rate divided by `1 + decay * step`."""

    def __init__(self, schedule: Rate, decay: float) -> None:
        super().__init__(schedule)
        self.decay = decay

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        return rate_at(self.schedule, step) / (1.0 + self.decay * ops.cast(step, "float32"))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {**super().get_config(), "decay": self.decay}


@keras.saving.register_keras_serializable(package="everstep")
class LinearWarmup(_Wrapper):
    """A line from `warmup_learning_rate` to the value of the wrapped schedule at `warmup_steps`.

    The schedule is not shifted: from `warmup_steps` on the rate is what it would be without warmup.
    """

    def __init__(self, schedule: Rate, warmup_steps: int, warmup_learning_rate: float = 0.0) -> None:
        super().__init__(schedule)
        self.warmup_steps = warmup_steps
        self.warmup_learning_rate = warmup_learning_rate

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        position = ops.cast(step, "float32")
        start, end = self.warmup_learning_rate, rate_at(self.schedule, self.warmup_steps)
        line = start + position / float(self.warmup_steps) * (end - start)
        return ops.where(position < self.warmup_steps, line, rate_at(self.schedule, step))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        own = {"warmup_steps": self.warmup_steps, "warmup_learning_rate": self.warmup_learning_rate}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="everstep")
class PolynomialWarmup(_Wrapper):
    """`(step / warmup_steps) ** power` of the value of the wrapped schedule at `warmup_steps`; step 0 counts as 1.

    The schedule is not shifted: from `warmup_steps` on the rate is what it would be without warmup.
    """

    def __init__(self, schedule: Rate, warmup_steps: int, power: float = 1.0) -> None:
        super().__init__(schedule)
        self.warmup_steps = warmup_steps
        self.power = power

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        position = ops.cast(step, "float32")
        fraction = ops.maximum(position, 1.0) / float(self.warmup_steps)
        curve = rate_at(self.schedule, self.warmup_steps) * ops.power(fraction, self.power)
        return ops.where(position < self.warmup_steps, curve, rate_at(self.schedule, step))

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {**super().get_config(), "warmup_steps": self.warmup_steps, "power": self.power}


@keras.saving.register_keras_serializable(package="everstep")
class Polynomial(keras.optimizers.schedules.PolynomialDecay):
    """`PolynomialDecay` that ends exactly at `end_learning_rate`, for every power and also when compiled by XLA."""

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        step, length = ops.cast(step, "int32"), ops.convert_to_tensor(self.decay_steps, "int32")
        if self.cycle:
            cycles = ops.maximum(ops.floor_divide(step + length - 1, length), 1)
            length = length * cycles
        left = ops.maximum(1.0 - ops.cast(step, "float32") / ops.cast(length, "float32"), 0.0)
        left = ops.where(step < length, left, 0.0)
        height = self.initial_learning_rate - self.end_learning_rate
        return height * ops.power(left, float(self.power)) + self.end_learning_rate


@keras.saving.register_keras_serializable(package="everstep")
class Exponential(keras.optimizers.schedules.ExponentialDecay):
    """`ExponentialDecay` whose stairs begin exactly at multiples of `decay_steps`, also when compiled."""

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        if not self.staircase:
            return super().__call__(step)
        stairs = ops.floor_divide(ops.cast(step, "int32"), ops.convert_to_tensor(self.decay_steps, "int32"))
        return self.initial_learning_rate * ops.power(float(self.decay_rate), ops.cast(stairs, "float32"))


# -- powers of the step -----------------------------------------------------------------------------------------------


@keras.saving.register_keras_serializable(package="everstep")
class Power(keras.optimizers.schedules.LearningRateSchedule):
    """`initial_learning_rate * step ** power`; step 0 counts as 1."""

    def __init__(self, initial_learning_rate: float, power: float = -0.5) -> None:
        super().__init__()
        self.initial_learning_rate = initial_learning_rate
        self.power = power

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        counted = ops.maximum(ops.cast(step, "float32"), 1.0)
        return self.initial_learning_rate * ops.power(counted, self.power)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        return {"initial_learning_rate": self.initial_learning_rate, "power": self.power}


@keras.saving.register_keras_serializable(package="everstep")
class PowerLinear(Power):
    """A power of the step, times a line from 1 to 0 over the last part of `total_decay_steps`; then 0."""

    def __init__(
        self,
        initial_learning_rate: float,
        total_decay_steps: int,
        power: float = -0.5,
        linear_decay_fraction: float = 0.1,
    ) -> None:
        super().__init__(initial_learning_rate, power)
        self.total_decay_steps = total_decay_steps
        self.linear_decay_fraction = linear_decay_fraction

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        left = self.total_decay_steps - ops.cast(step, "float32")
        line = left / (self.total_decay_steps * self.linear_decay_fraction)
        return super().__call__(step) * ops.clip(line, 0.0, 1.0)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        own = {"total_decay_steps": self.total_decay_steps, "linear_decay_fraction": self.linear_decay_fraction}
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="everstep")
class PowerWithOffset(Power):
    """`pre_offset_learning_rate` up to `offset`, then a power of the steps after it, limited to the first rate."""

    def __init__(
        self,
        initial_learning_rate: float,
        power: float = -0.5,
        offset: int = 0,
        pre_offset_learning_rate: float = 1e6,
    ) -> None:
        super().__init__(initial_learning_rate, power)
        self.offset = offset
        self.pre_offset_learning_rate = pre_offset_learning_rate

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        since = ops.cast(step, "float32") - self.offset
        before = self.pre_offset_learning_rate
        return ops.where(since > 0, ops.minimum(super().__call__(since), before), before)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        own = {"offset": self.offset, "pre_offset_learning_rate": self.pre_offset_learning_rate}
        return {**super().get_config(), **own}


# -- several cosines --------------------------------------------------------------------------------------------------

# Both schedules look up the interval of a step in a table, which is exact; a logarithm could take the last step of one
# interval for the first of the next.

_LAST_STEP = 2**31


def _half_cosine(position: Any) -> Any:
    """Returns a value that falls from 1 to 0 along half a cosine, for `position` from 0 to 1."""
    return 0.5 * (1.0 + ops.cos(math.pi * position))


def _interval(step: Any, starts: Sequence[float]) -> Any:
    """Returns the index of the interval that contains `step`, given the starts of all intervals."""
    begun = ops.greater_equal(step, ops.convert_to_tensor(list(starts), dtype="float32"))
    return ops.maximum(ops.sum(ops.cast(begun, "int32")) - 1, 0)


def _entry(values: Sequence[float], index: Any) -> Any:
    return ops.take(ops.convert_to_tensor(list(values), dtype="float32"), index)


@keras.saving.register_keras_serializable(package="everstep")
class CosineRestarts(keras.optimizers.schedules.LearningRateSchedule):
    """Half a cosine, repeated: each is `t_mul` times as long as the previous one and starts `m_mul` times as high."""

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
        """Returns the number of restarts and the position in the cosine, if all are equally long."""
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
    """From one value to the next along half a cosine in each interval, and constant after the last one.

    The first interval starts at step 0, which may be the first boundary, the others at the boundaries. `values` holds
    the rate at the start of each interval and, optionally, the rate at the last boundary, which is 0 by default.
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
