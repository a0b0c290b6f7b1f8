"""`OptimizationConfig`: the optimizer, its learning rate, warmup and rates by layer, and the average of the weights.

Imports no Keras; `building.py` creates the Keras objects. Names and defaults follow TensorFlow Model Garden, except
that the defaults work without further configuration: Adam at a constant 1e-3, without warmup. Register your own
optimizer with a decorator:

    @dataclasses.dataclass
    class LionConfig(ClippingConfig):
        beta_1: float = 0.9

    @register_optimizer("lion", LionConfig)
    def lion(learning_rate, **fields):
        return keras.optimizers.Lion(learning_rate, **fields)

After that, `optimizer: {type: lion, lion: {beta_1: 0.95}}` is valid in every new configuration.
"""

import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, Self, TypeVar

import pydantic
from annotated_types import Ge, Gt, Le, Lt

from everstep.config import Config, Declined, OneOfConfig
from everstep.errors import Problem, UsageError, nearest

Maker = TypeVar("Maker", bound=Callable[..., Any])

_OTHER_NAMES = {
    "sgd_experimental": "is 'sgd' here; instead of jit_compile there is runtime.enable_xla",
    "adam_experimental": "is 'adam' here; instead of jit_compile there is runtime.enable_xla",
    "adamw_experimental": "is 'adamw' here, with weight_decay_rate and gradient_clip_norm; "
    "instead of jit_compile there is runtime.enable_xla",
    "adafactor_keras": "is 'adafactor' here; its learning rate is that of optimizer_config.learning_rate",
    "slide": "has never been published; 'lamb' is the closest that has",
}
"""Types of Model Garden that have another name here, or do not exist."""

_REGISTER = "your own optimizer must be registered with @register_optimizer before the config is created"

_registered: dict[str, tuple[type[Config], Callable[..., Any]]] = {}


# -- rules beyond types -----------------------------------------------------------------------------------------------

# Each function yields the problems of the named fields of one config. A field that is None is not set; only `required`
# reports that.


@dataclasses.dataclass
class NamedConfig(Config):
    """A config that accepts the `name` of Model Garden's files, a label without effect."""

    _declined: ClassVar[Mapping[str, Declined]] = {
        "name": Declined("it is a label without effect, and must be text", label=True)
    }


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Patterns = Annotated[
    list[str],
    pydantic.BeforeValidator(_listed),
    pydantic.WithJsonSchema({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "string"}]}),
]
"""Regular expressions; a single one may be passed instead of a list."""

Rate = Annotated[float, Ge(0), Lt(math.inf)]
"""A learning rate."""


def required(config: Config, *names: str) -> Iterator[Problem]:
    """Yields fields that have no value."""
    for name in names:
        if getattr(config, name) is None:
            yield Problem(name, "is required")


def rates(config: Config, *names: str) -> Iterator[Problem]:
    """Yields lists with learning rates that are negative or not finite."""
    for name, value in _set(config, names):
        if not all(0 <= rate < math.inf for rate in value):
            yield Problem(name, "a learning rate must be finite and not negative", received=value)


def increasing_steps(config: Config, name: str, first: int = 0) -> Iterator[Problem]:
    """Yields lists that are not strictly increasing steps from `first` on."""
    for _, steps in _set(config, (name,)):
        if not steps or steps != sorted(set(steps)) or steps[0] < first:
            yield Problem(name, f"must be steps from {first} on in increasing order", received=steps)


def patterns(config: Config, *names: str) -> Iterator[Problem]:
    """Yields entries of lists that are not valid regular expressions."""
    for name, listed in _set(config, names):
        for pattern in listed:
            yield from _wrong_pattern(name, pattern)


def _wrong_pattern(name: str, pattern: str) -> Iterator[Problem]:
    try:
        re.compile(pattern)
    except re.error as error:
        yield Problem(name, f"is not a regular expression: {error}", received=pattern)


def _set(config: Config, names: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    values = ((name, getattr(config, name)) for name in names)
    return ((name, value) for name, value in values if value is not None)


# -- optimizers -------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class ClippingConfig(NamedConfig):
    """The fields of every optimizer: at most one of three ways to clip gradients."""

    clipnorm: Annotated[float, Gt(0)] | None = None
    """Largest norm of each variable's gradient."""
    clipvalue: Annotated[float, Gt(0)] | None = None
    """Largest absolute value of any gradient entry."""
    global_clipnorm: Annotated[float, Gt(0)] | None = None
    """Largest norm of all gradients taken together."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        names = ("clipnorm", "clipvalue", "global_clipnorm")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            yield Problem("", f"gradients are clipped twice, by {' and '.join(given)}", remedy="set one of them")


@dataclasses.dataclass
class SGDConfig(ClippingConfig):
    """Gradient descent, with momentum if configured."""

    decay: Annotated[float, Ge(0)] = 0.0
    """Divides the learning rate by `1 + decay * step`."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Fraction of the last update that is kept."""
    nesterov: bool = False
    """Looks ahead along the momentum."""


@dataclasses.dataclass
class AdamConfig(ClippingConfig):
    """Adam (Kingma and Ba, 2015)."""

    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Decay of the mean of the gradients."""
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999
    """Decay of the mean of their squares."""
    epsilon: Annotated[float, Ge(0)] = 1e-7
    """Keeps the division finite."""
    amsgrad: bool = False
    """Uses the largest second moment seen so far."""


@dataclasses.dataclass
class AdamWeightDecayConfig(AdamConfig):
    """AdamW: Adam with weight decay that is decoupled from the gradient."""

    weight_decay_rate: Annotated[float, Ge(0)] = 0.0
    """Each step subtracts `learning_rate * weight_decay_rate * variable` from the variable."""
    include_in_weight_decay: Patterns | None = None
    """Regular expressions; a variable whose name matches one decays, even if it is excluded below."""
    exclude_from_weight_decay: Patterns | None = None
    """Regular expressions; a variable whose name matches one, such as `bias`, does not decay."""
    gradient_clip_norm: Annotated[float, Ge(0)] = 1.0
    """Largest norm of all gradients taken together; 1.0 is the default of Model Garden, 0 disables clipping."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from patterns(self, "include_in_weight_decay", "exclude_from_weight_decay")
        if self.gradient_clip_norm and (self.clipnorm or self.clipvalue or self.global_clipnorm):
            text, remedy = "gradients are clipped twice", "set gradient_clip_norm to 0 to clip in another way"
            yield Problem("gradient_clip_norm", text, received=self.gradient_clip_norm, remedy=remedy)


@dataclasses.dataclass
class LayerwiseConfig(ClippingConfig):
    """The common fields of lamb and lars: weight decay, and steps relative to the norm of each variable."""

    weight_decay_rate: Annotated[float, Ge(0)] = 0.0
    """The fraction of the variable that is added to its update."""
    exclude_from_weight_decay: Patterns | None = None
    """Regular expressions; a variable whose name matches one, such as `bias`, does not decay."""
    exclude_from_layer_adaptation: Patterns | None = None
    """Regular expressions; steps of a variable whose name matches one ignore its norm. None: those above."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from patterns(self, "exclude_from_weight_decay", "exclude_from_layer_adaptation")


@dataclasses.dataclass
class LAMBConfig(LayerwiseConfig):
    """LAMB (You et al., 2020): Adam with steps relative to the norm of each variable."""

    beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Decay of the mean of the gradients."""
    beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999
    """Decay of the mean of their squares."""
    epsilon: Annotated[float, Ge(0)] = 1e-6
    """Keeps the division finite."""


@dataclasses.dataclass
class LARSConfig(LayerwiseConfig):
    """LARS (You et al., 2017): gradient descent with steps relative to the norm of each variable."""

    momentum: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Fraction of the last update that is kept."""
    eeta: Annotated[float, Gt(0)] = 0.001
    """The length of a step as a fraction of the norm of the variable."""
    nesterov: bool = False
    """Looks ahead along the momentum."""
    classic_momentum: bool = True
    """The momentum accumulates scaled updates; otherwise it accumulates gradients, and their sum is scaled."""


@dataclasses.dataclass
class RMSPropConfig(ClippingConfig):
    """RMSprop (Hinton, 2012)."""

    rho: Annotated[float, Ge(0), Lt(1)] = 0.9
    """Decay of the mean of squared gradients."""
    momentum: Annotated[float, Ge(0), Lt(1)] = 0.0
    """Fraction of the last update that is kept."""
    epsilon: Annotated[float, Ge(0)] = 1e-7
    """Keeps the division finite."""
    centered: bool = False
    """Divides by the variance of the gradients instead of their mean square."""


@dataclasses.dataclass
class AdagradConfig(ClippingConfig):
    """Adagrad (Duchi et al., 2011)."""

    initial_accumulator_value: Annotated[float, Ge(0)] = 0.1
    """The initial sum of squared gradients."""
    epsilon: Annotated[float, Ge(0)] = 1e-7
    """Keeps the division finite."""


@dataclasses.dataclass
class AdafactorConfig(ClippingConfig):
    """Adafactor (Shazeer and Stern, 2018): factored second moments, steps relative to the weights."""

    beta_2_decay: Annotated[float, Lt(0)] = -0.8
    """The second moments decay by `1 - step ** beta_2_decay`."""
    epsilon_1: Annotated[float, Gt(0)] = 1e-30
    """Added to squared gradients."""
    epsilon_2: Annotated[float, Ge(0)] = 1e-3
    """The smallest root mean square of the weights that a step is relative to."""
    clip_threshold: Annotated[float, Gt(0)] = 1.0
    """The largest root mean square of an update."""
    relative_step: bool = True
    """The learning rate is at most one over the square root of the step."""


@dataclasses.dataclass
class MuonConfig(ClippingConfig):
    """Muon (Jordan et al., 2024): momentum made orthogonal, for matrices; AdamW for all other variables.

    Names and defaults are those of Keras. The matrix of the last layer belongs to AdamW, too: list it in
    `exclude_layers`.
    """

    momentum: Annotated[float, Ge(0), Lt(1)] = 0.95
    """Fraction of the last momentum that is kept."""
    nesterov: bool = True
    """Looks ahead along the momentum."""
    ns_steps: Annotated[int, Gt(0)] = 5
    """Iterations of Newton and Schulz that make an update orthogonal."""
    rms_rate: Annotated[float, Gt(0)] | None = 0.2
    """Scales updates to the size of those of AdamW, so that both use one learning rate; None: they are not scaled."""
    weight_decay: Annotated[float, Ge(0)] | None = 0.004
    """Each step subtracts `learning_rate * weight_decay * variable` from a matrix."""
    exclude_layers: Patterns | None = None
    """Regular expressions; AdamW updates a matrix whose name matches one, such as `output`."""
    exclude_embeddings: bool = True
    """AdamW updates matrices with `embedding` in their names."""
    adam_beta_1: Annotated[float, Ge(0), Lt(1)] = 0.9
    """For AdamW: decay of the mean of the gradients."""
    adam_beta_2: Annotated[float, Ge(0), Lt(1)] = 0.999
    """For AdamW: decay of the mean of their squares."""
    adam_weight_decay: Annotated[float, Ge(0)] | None = 0.004
    """For AdamW: its weight decay."""
    adam_lr_ratio: Annotated[float, Gt(0)] = 1.0
    """For AdamW: its learning rate, relative to that of Muon."""
    epsilon: Annotated[float, Ge(0)] = 1e-7
    """For AdamW: keeps the division finite."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from patterns(self, "exclude_layers")


@dataclasses.dataclass
class EMAConfig(NamedConfig):
    """A moving average of the weights, used to evaluate and export the model."""

    trainable_weights_only: bool = True
    """False also averages other variables of the model, such as the statistics of batch normalization."""
    average_decay: Annotated[float, Ge(0), Le(1)] = 0.99
    """The fraction of the previous average that a step keeps."""
    start_step: Annotated[int, Ge(0)] = 0
    """Before this step the average is a copy of the weights."""
    dynamic_decay: bool = True
    """Keeps less in the first steps: at most `(1 + n) / (10 + n)` in the n-th step after `start_step`."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if self.average_decay == 1 and not self.dynamic_decay:  # the average would never change
            yield Problem("average_decay", "must be from 0 to below 1", received=self.average_decay)


@dataclasses.dataclass
class OptimizerConfig(OneOfConfig):
    """Which optimizer updates the weights; `register_optimizer` adds your own.

    A new instance has a field for every optimizer that is registered when it is created.
    """

    type: str | None = "adam"
    """One of the fields below."""
    sgd: SGDConfig = SGDConfig()
    """Gradient descent."""
    adam: AdamConfig = AdamConfig()
    """Adam."""
    adamw: AdamWeightDecayConfig = AdamWeightDecayConfig()
    """Adam with decoupled weight decay."""
    lamb: LAMBConfig = LAMBConfig()
    """Adam for large batches."""
    lars: LARSConfig = LARSConfig()
    """Gradient descent for large batches."""
    rmsprop: RMSPropConfig = RMSPropConfig()
    """RMSprop."""
    adagrad: AdagradConfig = AdagradConfig()
    """Adagrad."""
    adafactor: AdafactorConfig = AdafactorConfig()
    """Adafactor."""
    muon: MuonConfig = MuonConfig()
    """Muon for matrices, AdamW for the rest."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Creates an instance of the class with all registered optimizers; subclasses are unchanged."""
        extended: Any = _extended() if cls is OptimizerConfig else cls
        return object.__new__(extended)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Completes the copy of a config that was created before an optimizer was registered."""
        is_complete = all(field.name in state for field in dataclasses.fields(self))
        vars(self).update(state if is_complete else {**vars(type(self)()), **state})

    def _convert(self, name: str, value: Any) -> Any:
        if name == "type" and isinstance(value, str) and value not in self._names():
            if value in _OTHER_NAMES:
                raise UsageError(_OTHER_NAMES[value], key="type", received=value)
            remedy = f"{nearest(value, set(self._names()) - {'type'})}; {_REGISTER}"
            raise UsageError("unknown type", key="type", received=value, remedy=remedy)
        return super()._convert(name, value)

    def _unknown(self, name: str, value: Any) -> Problem:
        if name in _OTHER_NAMES:
            return Problem(name, _OTHER_NAMES[name])
        problem = super()._unknown(name, value)
        return dataclasses.replace(problem, key=name, reason=f"{problem.reason}; {_REGISTER}")


# -- registering an optimizer -----------------------------------------------------------------------------------------


def register_optimizer(name: str, config_cls: type[Config]) -> Callable[[Maker], Maker]:
    """Registers the decorated function or class as the optimizer for `optimizer.type: name`.

    It is called with `learning_rate` (a float or a Keras schedule) and the fields of the config, and returns a
    `keras.optimizers.Optimizer`. Running the same definition again, as in a notebook cell, replaces it.

    Args:
      name: The type, and the key of its settings.
      config_cls: The class of its settings, a `Config` dataclass with a default for every field; `ClippingConfig` has
        the ways to clip gradients.

    Raises:
      UsageError: The name is invalid or taken, or `config_cls` is not a config class.
    """
    if not (isinstance(name, str) and name.isidentifier() and not name.startswith("_")):
        text, remedy = "is not a valid name", "use letters, digits and _"
        raise UsageError(text, key="@register_optimizer", received=name, remedy=remedy)
    if not (isinstance(config_cls, type) and issubclass(config_cls, Config)):
        raise UsageError("expected a config class", key=f"@register_optimizer({name!r}, …)", received=config_cls)

    def register(make: Maker) -> Maker:
        _require_free(name, make)
        _registered[name] = config_cls, make
        _extended.cache_clear()
        return make

    return register


def registered() -> dict[str, Callable[..., Any]]:
    """Returns the registered functions, by the name of the optimizer."""
    return {name: make for name, (_, make) in _registered.items()}


@functools.cache
def _extended() -> type[OptimizerConfig]:
    """Returns the config class with all registered optimizers; cached: configs are equal only within one class."""
    if not _registered:
        return OptimizerConfig
    fields = [(name, cls, dataclasses.field(default_factory=cls)) for name, (cls, _) in _registered.items()]
    extended = dataclasses.make_dataclass("OptimizerConfig", fields, bases=(OptimizerConfig,), repr=False, eq=False)
    extended.__module__ = __name__
    return extended


def _require_free(name: str, make: Callable[..., Any]) -> None:
    if name in {field.name for field in dataclasses.fields(OptimizerConfig)}:
        text, remedy = "is a built-in optimizer", "choose another name"
        raise UsageError(text, key="@register_optimizer", received=name, remedy=remedy)
    held = registered().get(name)
    if held is not None and _definition(held) != _definition(make):
        text, remedy = f"is already registered by {'.'.join(_definition(held))}", "choose another name"
        raise UsageError(text, key="@register_optimizer", received=name, remedy=remedy)


def _definition(make: Callable[..., Any]) -> tuple[str, str]:
    return getattr(make, "__module__", ""), getattr(make, "__qualname__", repr(make))


# -- learning rates and warmup ----------------------------------------------------------------------------------------


@dataclasses.dataclass
class ConstantLrConfig(NamedConfig):
    """One learning rate for all steps."""

    learning_rate: Rate = 1e-3
    """The learning rate."""


@dataclasses.dataclass
class OffsetConfig(NamedConfig):
    """A schedule that can begin later."""

    offset: int = 0
    """The schedule is evaluated at `step - offset`."""


@dataclasses.dataclass
class StepwiseLrConfig(OffsetConfig):
    """Constant between boundaries."""

    boundaries: list[int] | None = None
    """The last steps of all intervals but the final one. Required."""
    values: list[float] | None = None
    """The learning rate in each interval, one more than boundaries. Required."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "boundaries", "values")
        yield from rates(self, "values")
        yield from increasing_steps(self, "boundaries")
        if self.boundaries and self.values is not None and len(self.values) != len(self.boundaries) + 1:
            text = f"must be one more than the {len(self.boundaries)} boundaries, not {len(self.values)}"
            yield Problem("values", text, received=self.values)


@dataclasses.dataclass
class ExponentialLrConfig(OffsetConfig):
    """`initial_learning_rate * decay_rate ** (step / decay_steps)`."""

    initial_learning_rate: Rate | None = None
    """The rate at step 0. Required."""
    decay_steps: Annotated[int, Gt(0)] | None = None
    """The number of steps after which the rate is multiplied by `decay_rate`. Required."""
    decay_rate: Annotated[float, Gt(0)] | None = None
    """The factor. Required."""
    staircase: bool | None = None
    """Decays at whole multiples of `decay_steps` only."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "initial_learning_rate", "decay_steps", "decay_rate")


@dataclasses.dataclass
class PolynomialLrConfig(OffsetConfig):
    """From one rate to another along a power of the remaining time."""

    initial_learning_rate: Rate | None = None
    """The rate at step 0. Required."""
    decay_steps: Annotated[int, Gt(0)] | None = None
    """Steps until the end rate. None: until training ends."""
    end_learning_rate: Rate = 1e-4
    """The rate at the end and after it."""
    power: Annotated[float, Ge(0)] = 1.0
    """1 is a straight line."""
    cycle: bool = False
    """Starts again, over a longer time, when the end is passed."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "initial_learning_rate")


@dataclasses.dataclass
class CosineLrConfig(OffsetConfig):
    """Half a cosine from the initial rate down to `alpha` times it."""

    initial_learning_rate: Rate | None = None
    """The rate at step 0. Required."""
    decay_steps: Annotated[int, Gt(0)] | None = None
    """Steps until the end rate. None: until training ends."""
    alpha: Annotated[float, Ge(0)] = 0.0
    """The end rate as a fraction of the initial one."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "initial_learning_rate")


@dataclasses.dataclass
class CosineRestartsLrConfig(OffsetConfig):
    """Half a cosine again and again (Loshchilov and Hutter, 2017)."""

    initial_learning_rate: Rate | None = None
    """The rate at step 0. Required."""
    first_decay_steps: Annotated[int, Gt(0)] | None = None
    """Steps of the first cosine. Required."""
    t_mul: float = 2.0
    """The length of each cosine relative to the previous one: 1, or at least 1.001."""
    m_mul: Annotated[float, Gt(0)] = 1.0
    """The initial rate of each cosine relative to the previous one."""
    alpha: Annotated[float, Ge(0)] = 0.0
    """The rate at the end of each cosine as a fraction of the initial one."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "initial_learning_rate", "first_decay_steps")
        if self.t_mul != 1 and self.t_mul < 1.001:
            text = "must be 1 (all cosines are equally long) or at least 1.001"
            yield Problem("t_mul", text, received=self.t_mul)


@dataclasses.dataclass
class PowerLrConfig(NamedConfig):
    """`initial_learning_rate * step ** power`; step 0 counts as 1."""

    initial_learning_rate: Rate | None = None
    """The rate at step 1. Required."""
    power: float = -0.5
    """Less than 0 to decay: -0.5 is one over the square root."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "initial_learning_rate")


@dataclasses.dataclass
class PowerLinearLrConfig(OffsetConfig):
    """A power of the step, times a line that falls to 0 in the last part of `total_decay_steps`."""

    initial_learning_rate: Rate | None = None
    """The rate at step 1. Required."""
    total_decay_steps: Annotated[int, Gt(0)] | None = None
    """Steps until the rate is 0, where it stays. None: until training ends."""
    power: float = -0.5
    """Less than 0 to decay: -0.5 is one over the square root."""
    linear_decay_fraction: Annotated[float, Le(1)] = 0.1
    """The last part of `total_decay_steps`, in which the line falls."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "initial_learning_rate")
        if self.linear_decay_fraction <= 0:
            remedy = "for a rate without an end use the type power_with_offset"
            received = self.linear_decay_fraction
            yield Problem("linear_decay_fraction", "must be more than 0", received=received, remedy=remedy)


@dataclasses.dataclass
class PowerWithOffsetLrConfig(PowerLrConfig):
    """One rate up to `offset`, then `initial_learning_rate * (step - offset) ** power`."""

    offset: int = 0
    """The last step of the first rate."""
    pre_offset_learning_rate: Rate = 1e6
    """The rate up to `offset`, and the largest one after it."""


@dataclasses.dataclass
class StepCosineLrConfig(OffsetConfig):
    """From one value to the next along half a cosine, in each interval."""

    boundaries: list[int] | None = None
    """The steps at which the intervals end; the first interval starts at 0, which may be listed, too. Required."""
    values: list[float] | None = None
    """The rate at the start of each interval and, optionally, at the last boundary (default 0). Required."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        yield from required(self, "boundaries", "values")
        yield from rates(self, "values")
        yield from increasing_steps(self, "boundaries")
        ends = [step for step in self.boundaries or () if step > 0]
        if self.boundaries and not ends:
            yield Problem("boundaries", "must have a step after 0, at which an interval ends", received=self.boundaries)
        elif self.boundaries and self.values is not None and len(self.values) - len(ends) not in (0, 1):
            counted = f"{len(ends)} boundaries{' after 0' if len(ends) < len(self.boundaries) else ''}"
            text = f"must be as many as the {counted}, or one more, not {len(self.values)}"
            yield Problem("values", text, received=self.values)


@dataclasses.dataclass
class LrConfig(OneOfConfig):
    """How the learning rate changes over the steps; a plain number is a constant rate."""

    _takes_number = True

    type: str | None = "constant"
    """One of the fields below."""
    constant: ConstantLrConfig = ConstantLrConfig()
    """A constant rate."""
    stepwise: StepwiseLrConfig = StepwiseLrConfig()
    """Constant between boundaries."""
    exponential: ExponentialLrConfig = ExponentialLrConfig()
    """Exponential decay."""
    polynomial: PolynomialLrConfig = PolynomialLrConfig()
    """Along a polynomial."""
    cosine: CosineLrConfig = CosineLrConfig()
    """Along a cosine."""
    cosine_restarts: CosineRestartsLrConfig = CosineRestartsLrConfig()
    """Along repeated cosines."""
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
"""The schedules that have an end, and the field for its step; None means the end of training."""


@dataclasses.dataclass
class WarmupLengthConfig(NamedConfig):
    """How long a warmup takes; the schedule itself is not shifted by it. One of the two is required."""

    _alternatives: ClassVar[tuple[tuple[str, ...], ...]] = (("warmup_steps", "warmup_share"),)

    warmup_steps: Annotated[int, Ge(0)] | None = None
    """Steps of warmup."""
    warmup_share: Annotated[float, Ge(0), Le(1)] | None = None
    """Steps of warmup as a share of training, such as 0.05, instead of `warmup_steps`."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if self.warmup_steps is None and self.warmup_share is None:
            yield Problem("warmup_steps", "is required", remedy="set it, or warmup_share")


@dataclasses.dataclass
class LinearWarmupConfig(WarmupLengthConfig):
    """A straight line up to the schedule's value at the end of the warmup."""

    warmup_learning_rate: Rate = 0.0
    """The rate at step 0."""


@dataclasses.dataclass
class PolynomialWarmupConfig(WarmupLengthConfig):
    """A power of time up to the schedule's value at the end of the warmup."""

    power: float = 1.0
    """1 is a straight line from the value at step 1; step 0 has the same value."""


@dataclasses.dataclass
class WarmupConfig(OneOfConfig):
    """How the learning rate rises to its schedule; by default there is no warmup."""

    linear: LinearWarmupConfig = LinearWarmupConfig()
    """Along a line."""
    polynomial: PolynomialWarmupConfig = PolynomialWarmupConfig()
    """Along a polynomial."""


# -- learning rates by layer ------------------------------------------------------------------------------------------


@dataclasses.dataclass
class LayerRatesConfig(Config):
    """Factors of the learning rate: of variables by name, and from layer to layer of a backbone."""

    factors: dict[str, float] = dataclasses.field(default_factory=dict)
    """Regular expressions for names of variables, and the factor of each: `{embedding: 0.1, "^logits/": 10}`."""
    decay: Annotated[float, Gt(0), Le(1)] | None = None
    """The factor from one block to the one below it, such as 0.9. What comes after the last block, such as the head of
    a model, has the learning rate itself; what comes before the first one, such as embeddings, has the smallest."""
    blocks: str = ""
    """For `decay`: a regular expression with a group around the number of a block, such as `encoder_layer_([0-9]+)/`.
    Empty: the outermost layers whose names differ in a number."""

    def _problems(self) -> Iterator[Problem]:
        yield from super()._problems()
        if not self.factors and self.decay is None:
            yield Problem("", "changes nothing", remedy="set factors or decay")
        for pattern, factor in self.factors.items():
            yield from _wrong_pattern("factors", pattern)
            if not 0 < factor < math.inf:
                remedy = "freeze variables that should not be trained" if factor == 0 else ""
                yield Problem("factors", "must be more than 0, and finite", received={pattern: factor}, remedy=remedy)
        if self.blocks and self.decay is None:
            yield Problem("blocks", "is used by decay only", received=self.blocks, remedy="set decay, or remove it")
        wrong = list(_wrong_pattern("blocks", self.blocks))
        yield from wrong
        if self.blocks and not wrong and not re.compile(self.blocks).groups:
            remedy = "put parentheses around it: layer_([0-9]+)/"
            yield Problem("blocks", "has no group for the number of a block", received=self.blocks, remedy=remedy)


# -- all of it --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class OptimizationConfig(Config):
    """How weights are updated: optimizer, learning rate, warmup, rates by layer, and moving average."""

    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    """The optimizer."""
    learning_rate: LrConfig = LrConfig()
    """Its learning rate."""
    warmup: WarmupConfig = WarmupConfig()
    """The warmup of the learning rate in the first steps."""
    layer_rates: LayerRatesConfig | None = None
    """Learning rates that differ from layer to layer; None for one rate."""
    ema: EMAConfig | None = None
    """A moving average of the weights; None for none."""
    gradient_accumulation_steps: Annotated[int, Gt(0)] = 1
    """The number of steps whose gradients are averaged for one update; 1 updates in every step."""

    @property
    def unset_lengths(self) -> list[str]:
        """The keys of numbers of steps that follow from the length of training: of the schedule, of the warmup."""
        found = []
        kind = self.learning_rate.type
        field = LENGTHS.get(kind or "")
        if field is not None and getattr(self.learning_rate.get(), field) is None:
            found.append(f"learning_rate.{kind}.{field}")
        if self.warmup.type is not None and self.warmup.get().warmup_share is not None:
            found.append(f"warmup.{self.warmup.type}.warmup_steps")
        return found

    def with_length(self, train_steps: int) -> Self:
        """Returns a copy whose schedule ends at step `train_steps`, and whose warmup is the configured share of it.

        Numbers of steps that are set stay as they are.
        """
        config = self
        for key in self.unset_lengths:
            section, kind, field = key.split(".")
            if section == "warmup":
                share = self.warmup.get().warmup_share
                steps = max(1, round(share * train_steps)) if share else 0
            else:
                steps = max(1, train_steps - self.learning_rate.get().offset)
            config = config.replace(**{section: {kind: {field: steps}}})
        return config

    @property
    def late_warmup(self) -> str | None:
        """The key of a warmup that ends after the schedule, so that the rate is never above the last one; else None."""
        warmup, field = self.warmup.type, LENGTHS.get(self.learning_rate.type or "")
        if warmup is None or field is None:
            return None
        schedule = self.learning_rate.get()
        length = getattr(schedule, field)
        if length is None or (self.warmup.get().warmup_steps or 0) < schedule.offset + length:
            return None
        return f"warmup.{warmup}.warmup_steps"
