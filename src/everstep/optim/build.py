"""From `OptimizationConfig` to Keras objects.

Three tables name the optimizers, schedules and warmups; a further one is a field in the config and an entry
here. Keras is imported here and nowhere above, so that a config needs no backend.
"""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import keras
from keras.optimizers import schedules as keras_schedules

from everstep.config import Config, OneOfConfig
from everstep.errors import UsageError
from everstep.optim.config import OptimizationConfig
from everstep.optim.schedules import LinearWarmup, Offset, PolynomialWarmup, Rate, TimeDecay
from everstep.optim.weight_decay import SelectiveAdamW


@dataclasses.dataclass(frozen=True)
class _Entry:
    """How one type is made: `make(**fields)`, with these fields required."""

    make: Callable[..., Any]
    required: tuple[str, ...] = ()


def build(config: OptimizationConfig, path: str = "trainer.optimizer_config") -> keras.optimizers.Optimizer:
    """Returns the configured Keras optimizer with its learning rate schedule.

    Args:
      config: What to build.
      path: Key path of `config`, for error messages.

    Raises:
      UsageError: A required field is missing or a value is impossible, named by its key path.
    """
    rate = build_learning_rate(config, path)
    return _made(_OPTIMIZERS, config.optimizer, f"{path}.optimizer", learning_rate=rate)


def build_learning_rate(config: OptimizationConfig, path: str = "trainer.optimizer_config") -> Rate:
    """Returns the learning rate: a float where it is constant, else a Keras schedule with its warmup.

    Args:
      config: What to build.
      path: Key path of `config`, for error messages.

    Raises:
      UsageError: A required field is missing or a value is impossible, named by its key path.
    """
    rate = _made(_SCHEDULES, config.learning_rate, f"{path}.learning_rate")
    if config.warmup.type is None:
        return rate
    return _made(_WARMUPS, config.warmup, f"{path}.warmup", schedule=rate)


def _made(table: dict[str, _Entry], config: OneOfConfig, path: str, **arguments: Any) -> Any:
    """Returns what the selected branch of `config` describes."""
    if config.type is None:
        raise UsageError(f"{path}.type: nothing is selected; choose one of {', '.join(sorted(table))}")
    if config.type not in table:
        raise UsageError(f"{path}.type: {config.type!r} cannot be built; choose one of {', '.join(sorted(table))}")
    path = f"{path}.{config.type}"
    entry, branch = table[config.type], config.get()
    _require(branch, entry.required, path)
    try:
        return entry.make(**arguments, **branch.as_dict())
    except ValueError as error:
        raise UsageError(f"{path}: {error}") from None


def _require(branch: Config, names: tuple[str, ...], path: str) -> None:
    missing = [f"{path}.{name}: is required" for name in names if getattr(branch, name) is None]
    if missing:
        raise UsageError("\n".join(missing))


def _with_offset(schedule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a maker of `schedule` that also takes the field `offset`."""

    def make(offset: int, **fields: Any) -> Rate:
        inner = schedule(**fields)
        return Offset(inner, offset) if offset else inner

    return make


def _stepwise(boundaries: list[int], values: list[float]) -> Rate:
    if not boundaries or boundaries != sorted(set(boundaries)):
        raise ValueError(f"boundaries must be steps in increasing order, received {boundaries}")
    return keras_schedules.PiecewiseConstantDecay(boundaries, values)


def _exponential(decay_steps: int, staircase: bool | None, **fields: Any) -> Rate:
    _require_positive(decay_steps=decay_steps)
    return keras_schedules.ExponentialDecay(decay_steps=decay_steps, staircase=bool(staircase), **fields)


def _polynomial(decay_steps: int, **fields: Any) -> Rate:
    _require_positive(decay_steps=decay_steps)
    return keras_schedules.PolynomialDecay(decay_steps=decay_steps, **fields)


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if value <= 0:
            raise ValueError(f"{name} must be more than 0, received {value}")


def _warmup(wrapper: Callable[..., Rate]) -> Callable[..., Rate]:
    """Returns a maker of the warmup; one of 0 steps is none."""

    def make(schedule: Rate, warmup_steps: int, **fields: Any) -> Rate:
        if warmup_steps < 0:
            raise ValueError(f"warmup_steps cannot be negative, received {warmup_steps}")
        return wrapper(schedule, warmup_steps=warmup_steps, **fields) if warmup_steps else schedule

    return make


def _sgd(learning_rate: Rate, decay: float, **fields: Any) -> keras.optimizers.Optimizer:
    rate = TimeDecay(learning_rate, decay) if decay else learning_rate
    return keras.optimizers.SGD(rate, **fields)


def _adamw(
    weight_decay_rate: float,
    gradient_clip_norm: float,
    include_in_weight_decay: list[str] | None,
    exclude_from_weight_decay: list[str] | None,
    global_clipnorm: float | None,
    **fields: Any,
) -> keras.optimizers.Optimizer:
    if gradient_clip_norm and (global_clipnorm or fields["clipnorm"] or fields["clipvalue"]):
        raise ValueError("gradients are clipped twice; set gradient_clip_norm to 0 to clip another way")
    include, exclude = include_in_weight_decay or [], exclude_from_weight_decay or []
    _require_patterns(*include, *exclude)
    clip = gradient_clip_norm or global_clipnorm
    arguments = {**fields, "weight_decay": weight_decay_rate, "global_clipnorm": clip}
    if exclude:
        return SelectiveAdamW(include=include, exclude=exclude, **arguments)
    return keras.optimizers.AdamW(**arguments)


def _require_patterns(*patterns: str) -> None:
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None


_OPTIMIZERS = {
    "sgd": _Entry(_sgd),
    "adam": _Entry(keras.optimizers.Adam),
    "adamw": _Entry(_adamw),
    "rmsprop": _Entry(keras.optimizers.RMSprop),
}
_DECAY = ("initial_learning_rate", "decay_steps")
_SCHEDULES = {
    "constant": _Entry(lambda learning_rate: learning_rate),
    "stepwise": _Entry(_with_offset(_stepwise), ("boundaries", "values")),
    "exponential": _Entry(_with_offset(_exponential), (*_DECAY, "decay_rate")),
    "polynomial": _Entry(_with_offset(_polynomial), _DECAY),
    "cosine": _Entry(_with_offset(keras_schedules.CosineDecay), _DECAY),
}
_WARMUPS = {
    "linear": _Entry(_warmup(LinearWarmup), ("warmup_steps",)),
    "polynomial": _Entry(_warmup(PolynomialWarmup), ("warmup_steps",)),
}
