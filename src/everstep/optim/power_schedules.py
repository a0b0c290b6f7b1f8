"""Learning rates that are a power of the step: plain, down to zero, and after an offset."""

from typing import Any

import keras
from keras import ops


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
    """A power of the step, times a line from 1 to 0 in the last part of `total_decay_steps`; then 0."""

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
    """`pre_offset_learning_rate` up to `offset`, then a power of the steps since, never more than before."""

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
