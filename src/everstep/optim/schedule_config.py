"""Configuration of learning rate schedules and warmup: names as in TensorFlow Model Garden."""

import dataclasses
from collections.abc import Iterator
from typing import Self

from everstep.config import OneOfConfig, Problem
from everstep.optim.checks import (
    NamedConfig,
    fraction,
    increasing_steps,
    not_negative,
    positive,
    rates,
    required,
)


@dataclasses.dataclass
class ConstantLrConfig(NamedConfig):
    """One learning rate for all steps."""

    learning_rate: float = 1e-3
    """The learning rate."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from rates(self, "learning_rate")


@dataclasses.dataclass
class OffsetConfig(NamedConfig):
    """What every schedule that can begin later has."""

    offset: int = 0
    """The schedule is evaluated at `step - offset`."""


@dataclasses.dataclass
class StepwiseLrConfig(OffsetConfig):
    """Constant between boundaries."""

    boundaries: list[int] | None = None
    """The last steps of all intervals but the final one. Required."""
    values: list[float] | None = None
    """The learning rate in each interval, one more than boundaries. Required."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "boundaries", "values")
        yield from rates(self, "values")
        yield from increasing_steps(self, "boundaries")
        if self.boundaries and self.values is not None and len(self.values) != len(self.boundaries) + 1:
            text = (
                f"received {len(self.values)} for {len(self.boundaries)} boundaries, must be one more than boundaries"
            )
            yield Problem("values", text)


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

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "initial_learning_rate", "decay_steps", "decay_rate")
        yield from rates(self, "initial_learning_rate")
        yield from positive(self, "decay_steps", "decay_rate")


@dataclasses.dataclass
class PolynomialLrConfig(OffsetConfig):
    """From one rate to another along a power of the remaining time."""

    initial_learning_rate: float | None = None
    """The rate at step 0. Required."""
    decay_steps: int | None = None
    """Steps until the end rate. None: until training ends."""
    end_learning_rate: float = 1e-4
    """The rate at the end and after it."""
    power: float = 1.0
    """1 is a straight line."""
    cycle: bool = False
    """Starts again, over a longer time, where the end is passed."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "initial_learning_rate")
        yield from rates(self, "initial_learning_rate", "end_learning_rate")
        yield from not_negative(self, "power")
        yield from positive(self, "decay_steps")


@dataclasses.dataclass
class CosineLrConfig(OffsetConfig):
    """Half a cosine from the initial rate down to `alpha` times it."""

    initial_learning_rate: float | None = None
    """The rate at step 0. Required."""
    decay_steps: int | None = None
    """Steps until the end rate. None: until training ends."""
    alpha: float = 0.0
    """The end rate as a fraction of the initial one."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "initial_learning_rate")
        yield from rates(self, "initial_learning_rate")
        yield from not_negative(self, "alpha")
        yield from positive(self, "decay_steps")


@dataclasses.dataclass
class CosineRestartsLrConfig(OffsetConfig):
    """Half a cosine again and again (Loshchilov and Hutter, 2017)."""

    initial_learning_rate: float | None = None
    """The rate at step 0. Required."""
    first_decay_steps: int | None = None
    """Steps of the first cosine. Required."""
    t_mul: float = 2.0
    """Each cosine is so many times as long as the one before: 1, or at least 1.001."""
    m_mul: float = 1.0
    """Each cosine starts so many times as high as the one before."""
    alpha: float = 0.0
    """The rate at the end of the cosines as a fraction of the initial one."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "initial_learning_rate", "first_decay_steps")
        yield from rates(self, "initial_learning_rate")
        yield from not_negative(self, "alpha")
        yield from positive(self, "first_decay_steps", "m_mul")
        if self.t_mul != 1 and self.t_mul < 1.001:
            yield Problem("t_mul", f"received {self.t_mul}, must be 1 (all as long as the first) or at least 1.001")


@dataclasses.dataclass
class PowerLrConfig(NamedConfig):
    """`initial_learning_rate * step ** power`; step 0 counts as 1."""

    initial_learning_rate: float | None = None
    """The rate at step 1. Required."""
    power: float = -0.5
    """Less than 0 to decay: -0.5 is one over the square root."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "initial_learning_rate")
        yield from rates(self, "initial_learning_rate")


@dataclasses.dataclass
class PowerLinearLrConfig(OffsetConfig):
    """A power of the step, times a line that falls to 0 in the last part of `total_decay_steps`."""

    initial_learning_rate: float | None = None
    """The rate at step 1. Required."""
    total_decay_steps: int | None = None
    """Steps until the rate is 0, where it stays. None: until training ends."""
    power: float = -0.5
    """Less than 0 to decay: -0.5 is one over the square root."""
    linear_decay_fraction: float = 0.1
    """The last part of `total_decay_steps`, in which the line falls."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "initial_learning_rate")
        yield from rates(self, "initial_learning_rate")
        yield from positive(self, "total_decay_steps")
        if self.linear_decay_fraction <= 0:
            text = "must be more than 0; a rate without an end has the type power_with_offset"
            yield Problem("linear_decay_fraction", f"received {self.linear_decay_fraction}, {text}")
        else:
            yield from fraction(self, "linear_decay_fraction")


@dataclasses.dataclass
class PowerWithOffsetLrConfig(PowerLrConfig):
    """One rate up to `offset`, then `initial_learning_rate * (step - offset) ** power`."""

    offset: int = 0
    """The last step of the rate before."""
    pre_offset_learning_rate: float = 1e6
    """The rate up to `offset`, and the largest one after it."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from rates(self, "pre_offset_learning_rate")


@dataclasses.dataclass
class StepCosineLrConfig(OffsetConfig):
    """From one value to the next along half a cosine, in each interval."""

    boundaries: list[int] | None = None
    """The steps at which the intervals end; the first one starts at 0, which may stand before them. Required."""
    values: list[float] | None = None
    """The rate at which each interval starts, and, one more, the rate at the last boundary: 0 if left out. Required."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "boundaries", "values")
        yield from rates(self, "values")
        yield from increasing_steps(self, "boundaries")
        ends = [step for step in self.boundaries or () if step > 0]
        if self.boundaries and not ends:
            yield Problem("boundaries", f"received {self.boundaries}, must have a step after 0, where an interval ends")
        elif self.boundaries and self.values is not None and len(self.values) - len(ends) not in (0, 1):
            counted = f"{len(ends)} boundaries{' after 0' if len(ends) < len(self.boundaries) else ''}"
            text = f"received {len(self.values)} for {counted}, must be as many or one more"
            yield Problem("values", text)


@dataclasses.dataclass
class LrConfig(OneOfConfig):
    """How the learning rate changes over the steps; a plain number is a constant one."""

    _takes_number = True

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
    cosine_restarts: CosineRestartsLrConfig = CosineRestartsLrConfig()
    """Along one cosine after another."""
    power: PowerLrConfig = PowerLrConfig()
    """Along a power of the step."""
    power_linear: PowerLinearLrConfig = PowerLinearLrConfig()
    """Along a power of the step, down to 0."""
    power_with_offset: PowerWithOffsetLrConfig = PowerWithOffsetLrConfig()
    """Along a power of the steps after the offset."""
    step_cosine_with_offset: StepCosineLrConfig = StepCosineLrConfig()
    """Along a cosine in each interval."""

    @classmethod
    def _from_number(cls, value: float) -> Self:
        return cls({"type": "constant", "constant": {"learning_rate": value}})


LENGTHS = {"cosine": "decay_steps", "polynomial": "decay_steps", "power_linear": "total_decay_steps"}
"""The schedules that have an end, and the field that says after how many steps: None where training ends."""


@dataclasses.dataclass
class LinearWarmupConfig(NamedConfig):
    """A straight line up to the schedule's value at `warmup_steps`."""

    warmup_learning_rate: float = 0.0
    """The rate at step 0."""
    warmup_steps: int | None = None
    """Steps of warmup; the schedule itself is not shifted by them. Required."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "warmup_steps")
        yield from rates(self, "warmup_learning_rate")
        yield from not_negative(self, "warmup_steps")


@dataclasses.dataclass
class PolynomialWarmupConfig(NamedConfig):
    """A power of time up to the schedule's value at `warmup_steps`."""

    power: float = 1.0
    """1 is a straight line from the value at step 1; step 0 uses that value too."""
    warmup_steps: int | None = None
    """Steps of warmup; the schedule itself is not shifted by them. Required."""

    def _wrong(self) -> Iterator[Problem]:
        yield from super()._wrong()
        yield from required(self, "warmup_steps")
        yield from not_negative(self, "warmup_steps")


@dataclasses.dataclass
class WarmupConfig(OneOfConfig):
    """How the learning rate gets up to its schedule; by default it starts there."""

    linear: LinearWarmupConfig = LinearWarmupConfig()
    """Along a line."""
    polynomial: PolynomialWarmupConfig = PolynomialWarmupConfig()
    """Along a polynomial."""
