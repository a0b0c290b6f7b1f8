"""Creates Keras optimizers and schedules from an `OptimizationConfig`.

Three tables list the optimizers, schedules and warmups; to add one, add a field to the config and an entry here. The
config itself imports no Keras, so that it needs no backend.
"""

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras.optimizers import schedules as keras_schedules

from everstep.config import OneOfConfig
from everstep.errors import NOTHING, Problem, UsageError
from everstep.task.optim.config import OptimizationConfig, registered
from everstep.task.optim.ema import ExponentialMovingAverage
from everstep.task.optim.layer_rates import LayerRates
from everstep.task.optim.optimizers import Adafactor, Lamb, Lars, Muon, SelectiveAdamW
from everstep.task.optim.schedules import (
    CosineRestarts,
    Exponential,
    LinearWarmup,
    Offset,
    Polynomial,
    PolynomialWarmup,
    Power,
    PowerLinear,
    PowerWithOffset,
    Rate,
    StepCosine,
    TimeDecay,
)


def build(config: OptimizationConfig, path: str = "trainer.optimizer_config") -> keras.optimizers.Optimizer:
    """Returns the configured Keras optimizer with its learning rate schedule, rates by layer and moving average.

    Args:
      config: The configuration of the optimizer.
      path: Key path of `config`, for error messages.

    Raises:
      UsageError: A required field is missing or a value is impossible, named by its key path.
    """
    rate = build_learning_rate(config, path)
    optimizer = _create(_OPTIMIZERS | registered(), config.optimizer, f"{path}.optimizer", learning_rate=rate)
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        raise UsageError(
            "the registered function must return a keras.optimizers.Optimizer",
            key=f"{path}.optimizer.{config.optimizer.type}",
            received=optimizer,
        )
    if config.gradient_accumulation_steps > 1:
        optimizer.gradient_accumulation_steps = config.gradient_accumulation_steps
    if config.layer_rates is not None:
        LayerRates(optimizer, config.layer_rates, f"{path}.layer_rates")
    return optimizer if config.ema is None else ExponentialMovingAverage(optimizer, **config.ema.as_dict())


def build_learning_rate(config: OptimizationConfig, path: str = "trainer.optimizer_config") -> Rate:
    """Returns the learning rate: a float if it is constant, else a Keras schedule with its warmup.

    Args:
      config: The configuration of the learning rate.
      path: Key path of `config`, for error messages.

    Raises:
      UsageError: A required field is missing or a value is impossible, named by its key path.
    """
    _validate(config, path)
    rate = _create(_SCHEDULES, config.learning_rate, f"{path}.learning_rate")
    if config.warmup.type is None:
        return rate
    return _create(_WARMUPS, config.warmup, f"{path}.warmup", schedule=rate)


def _validate(config: OptimizationConfig, path: str) -> None:
    """Checks a config, including that the lengths of its learning rate schedule and warmup are set in steps."""
    problems: list[Problem] = []
    try:
        config.validate()
    except UsageError as error:
        problems += error.problems
    problems += [Problem(key, "is required") for key in config.unset_lengths]
    if problems:
        raise UsageError([problem.under(path) for problem in problems])


def _create(table: Mapping[str, Callable[..., Any]], config: OneOfConfig, path: str, **arguments: Any) -> Any:
    """Creates the object that the selected branch of `config` describes."""
    if config.type is None or config.type not in table:
        reason = "nothing is selected" if config.type is None else "cannot be built"
        received = NOTHING if config.type is None else config.type
        remedy = f"choose one of {', '.join(sorted(table))}"
        raise UsageError(reason, key=f"{path}.type", received=received, remedy=remedy)
    try:
        return table[config.type](**arguments, **config.get().as_dict())
    except ValueError as error:
        raise UsageError(str(error), key=f"{path}.{config.type}") from None


def _with_offset(schedule: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that creates `schedule`, shifted by the field `offset`."""

    def make(offset: int, **fields: Any) -> Rate:
        inner = schedule(**fields)
        return Offset(inner, offset) if offset else inner

    return make


def _exponential(staircase: bool | None, **fields: Any) -> Rate:
    return Exponential(staircase=bool(staircase), **fields)


def _warmup(wrapper: Callable[..., Rate]) -> Callable[..., Rate]:
    """Returns a function that creates a warmup; with 0 steps it returns the schedule itself."""

    def make(schedule: Rate, warmup_steps: int, warmup_share: None, **fields: Any) -> Rate:
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
    clip = gradient_clip_norm or global_clipnorm
    arguments = {**fields, "weight_decay": weight_decay_rate, "global_clipnorm": clip}
    if exclude_from_weight_decay:
        include, exclude = include_in_weight_decay or [], exclude_from_weight_decay
        return SelectiveAdamW(include=include, exclude=exclude, **arguments)
    return keras.optimizers.AdamW(**arguments)


def _layerwise(optimizer: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that creates Lamb or Lars, whose base class uses the names of the lists for something else."""

    def make(
        exclude_from_weight_decay: list[str] | None, exclude_from_layer_adaptation: list[str] | None, **fields: Any
    ) -> keras.optimizers.Optimizer:
        excluded = exclude_from_weight_decay or []
        return optimizer(exclude_from_decay=excluded, exclude_from_adaptation=exclude_from_layer_adaptation, **fields)

    return make


_OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "sgd": _sgd,
    "adam": keras.optimizers.Adam,
    "adamw": _adamw,
    "lamb": _layerwise(Lamb),
    "lars": _layerwise(Lars),
    "rmsprop": keras.optimizers.RMSprop,
    "adagrad": keras.optimizers.Adagrad,
    "adafactor": Adafactor,
    "muon": Muon,
}
_SCHEDULES: dict[str, Callable[..., Any]] = {
    "constant": lambda learning_rate: learning_rate,
    "stepwise": _with_offset(keras_schedules.PiecewiseConstantDecay),
    "exponential": _with_offset(_exponential),
    "polynomial": _with_offset(Polynomial),
    "cosine": _with_offset(keras_schedules.CosineDecay),
    "cosine_restarts": _with_offset(CosineRestarts),
    "power": Power,
    "power_linear": _with_offset(PowerLinear),
    "power_with_offset": PowerWithOffset,
    "step_cosine_with_offset": _with_offset(StepCosine),
}
_WARMUPS: dict[str, Callable[..., Any]] = {
    "linear": _warmup(LinearWarmup),
    "polynomial": _warmup(PolynomialWarmup),
}
