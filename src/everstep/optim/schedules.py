"""Learning rate schedules that Keras lacks, each of which wraps another one, or a constant; and two that it has.

Those two divide the step by a constant. Compilers multiply with the inverse instead, so that the quotient of two equal
numbers may be a little more or less than 1; here, what is an end or a boundary is found in whole numbers.

Everything is `keras.ops` on the step, so that a schedule runs inside a compiled step on every backend.
"""

from typing import Any

import keras
from keras import ops

Rate = Any
"""A learning rate: a float, or a `keras.optimizers.schedules.LearningRateSchedule`."""


def rate_at(rate: Rate, step: Any) -> Any:
    """Returns the value of a learning rate at a step; a constant has it at every step."""
    value = rate(step) if callable(rate) else rate
    return ops.cast(value, "float32")


class _Wrapper(keras.optimizers.schedules.LearningRateSchedule):
    """A schedule made from another learning rate, kept under `schedule`."""

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
    """A line from `warmup_learning_rate` to the wrapped schedule's value at `warmup_steps`.

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
    """`(step / warmup_steps) ** power` of the wrapped schedule's value at `warmup_steps`; step 0 counts as 1.

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
    """Keras's, but it ends exactly at `end_learning_rate` and stays there, for every power and when compiled by XLA."""

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
    """Keras's, whose stairs begin exactly at the multiples of `decay_steps`, however it is compiled."""

    def __call__(self, step: Any) -> Any:
        """Returns the learning rate at `step`."""
        if not self.staircase:
            return super().__call__(step)
        stairs = ops.floor_divide(ops.cast(step, "int32"), ops.convert_to_tensor(self.decay_steps, "int32"))
        return self.initial_learning_rate * ops.power(float(self.decay_rate), ops.cast(stairs, "float32"))
