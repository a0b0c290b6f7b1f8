"""Configuration of learning rate schedules and warmup: names as in TensorFlow Model Garden."""

import dataclasses

from everstep.config import Config, OneOfConfig


@dataclasses.dataclass
class ConstantLrConfig(Config):
    """One learning rate for all steps."""

    learning_rate: float = 1e-3
    """The learning rate."""


@dataclasses.dataclass
class OffsetConfig(Config):
    """What every schedule that moves has."""

    offset: int = 0
    """The schedule is evaluated at `step - offset`."""


@dataclasses.dataclass
class StepwiseLrConfig(OffsetConfig):
    """Constant between boundaries."""

    boundaries: list[int] | None = None
    """The last steps of all intervals but the final one. Required."""
    values: list[float] | None = None
    """The learning rate in each interval, one more than boundaries. Required."""


@dataclasses.dataclass
class ExponentialLrConfig(OffsetConfig):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`."""

    initial_learning_rate: float | None = None
    """The rate at step 0. Required."""
    decay_steps: int | None = None
    """Steps in which the rate is multiplied by `decay_rate` once. Required."""
    decay_rate: float | None = None
    """The factor. Required."""
    staircase: bool | None = None
    """Decays at whole multiples of `decay_steps` only."""


@dataclasses.dataclass
class PolynomialLrConfig(OffsetConfig):
    """From one rate to another along a power of the remaining time."""

    initial_learning_rate: float | None = None
    """The rate at step 0. Required."""
    decay_steps: int | None = None
    """Steps until the end rate. Required."""
    end_learning_rate: float = 1e-4
    """The rate at the end and after it."""
    power: float = 1.0
    """1 is a straight line."""
    cycle: bool = False
    """Starts again, over a longer time, where the end is passed."""


@dataclasses.dataclass
class CosineLrConfig(OffsetConfig):
    """Half a cosine from the initial rate down to `alpha` times it."""

    initial_learning_rate: float | None = None
    """The rate at step 0. Required."""
    decay_steps: int | None = None
    """Steps until the end rate. Required."""
    alpha: float = 0.0
    """The end rate as a fraction of the initial one."""


@dataclasses.dataclass
class LrConfig(OneOfConfig):
    """How the learning rate changes over the steps."""

    type: str | None = "constant"
    """One of the fields below."""
    constant: ConstantLrConfig = ConstantLrConfig()
    """It does not change."""
    stepwise: StepwiseLrConfig = StepwiseLrConfig()
    """In steps."""
    exponential: ExponentialLrConfig = ExponentialLrConfig()
    """By a factor."""
    polynomial: PolynomialLrConfig = PolynomialLrConfig()
    """Along a polynomial."""
    cosine: CosineLrConfig = CosineLrConfig()
    """Along a cosine."""


@dataclasses.dataclass
class LinearWarmupConfig(Config):
    """A straight line up to the schedule's value at `warmup_steps`."""

    warmup_learning_rate: float = 0.0
    """The rate at step 0."""
    warmup_steps: int | None = None
    """Steps of warmup; the schedule itself is not shifted by them. Required."""


@dataclasses.dataclass
class PolynomialWarmupConfig(Config):
    """A power of time up to the schedule's value at `warmup_steps`."""

    power: float = 1.0
    """1 is a straight line from the value at step 1; step 0 uses that value too."""
    warmup_steps: int | None = None
    """Steps of warmup; the schedule itself is not shifted by them. Required."""


@dataclasses.dataclass
class WarmupConfig(OneOfConfig):
    """How the learning rate gets up to its schedule; by default it starts there."""

    linear: LinearWarmupConfig = LinearWarmupConfig()
    """Along a line."""
    polynomial: PolynomialWarmupConfig = PolynomialWarmupConfig()
    """Along a polynomial."""
