"""The choice of an optimizer, and how to add your own to it.

    @dataclasses.dataclass
    class LionConfig(ClippingConfig):
        beta_1: float = 0.9

    @register_optimizer("lion", LionConfig)
    def lion(learning_rate, **fields):
        return keras.optimizers.Lion(learning_rate, **fields)

From then on `optimizer: {type: lion, lion: {beta_1: 0.95}}` is valid in every configuration that is made. Nothing here
imports Keras: it is loaded by whoever makes the optimizer.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Self, TypeVar

from everstep.config import Config, ConfigError, OneOfConfig, Problem
from everstep.errors import UsageError, nearest
from everstep.optim.optimizer_config import (
    AdafactorConfig,
    AdagradConfig,
    AdamConfig,
    AdamWeightDecayConfig,
    LAMBConfig,
    LARSConfig,
    RMSPropConfig,
    SGDConfig,
)

Maker = TypeVar("Maker", bound=Callable[..., Any])

_ELSEWHERE = {
    "sgd_experimental": "is 'sgd' here; instead of jit_compile there is runtime.enable_xla",
    "adam_experimental": "is 'adam' here; instead of jit_compile there is runtime.enable_xla",
    "adamw_experimental": "is 'adamw' here, with weight_decay_rate and gradient_clip_norm; "
    "instead of jit_compile there is runtime.enable_xla",
    "adafactor_keras": "is 'adafactor' here; its learning rate is that of optimizer_config.learning_rate",
    "slide": "has never been published; 'lamb' is the nearest that has",
}
"""Types of Model Garden that have another name here, or none."""

_FIRST = "one of your own is known once @register_optimizer has run, in configs that are made after that"

_registered: dict[str, tuple[type[Config], Callable[..., Any]]] = {}


@dataclasses.dataclass
class OptimizerConfig(OneOfConfig):
    """Which optimizer updates the weights; `register_optimizer` adds your own.

    To make one makes one of the class as it is now, with a field for every optimizer that was registered.
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

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Returns one of the class that knows all optimizers; a subclass stays what it is."""
        made: Any = _extended() if cls is OptimizerConfig else cls
        return object.__new__(made)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Completes the copy of a config that is older than the first registration."""
        vars(self).update({**vars(type(self)()), **state})

    def _convert(self, name: str, value: Any) -> Any:
        if name == "type" and isinstance(value, str) and value not in self._names():
            raise ConfigError([Problem("type", self._no_type(value))])
        return super()._convert(name, value)

    def _no_type(self, name: str) -> str:
        if name in _ELSEWHERE:
            return f"{name!r} {_ELSEWHERE[name]}"
        return f"unknown type {name!r}; {nearest(name, set(self._names()) - {'type'})}; {_FIRST}"

    def _unknown(self, name: str, value: Any) -> Problem:
        if name in _ELSEWHERE:
            return Problem(name, _ELSEWHERE[name])
        problem = super()._unknown(name, value)
        return Problem(name, f"{problem.text}; {_FIRST}")


def register_optimizer(name: str, config_cls: type[Config]) -> Callable[[Maker], Maker]:
    """Makes the decorated function, or class, the optimizer that `optimizer.type: name` means.

    It is called with `learning_rate` (a float or a Keras schedule) and the fields of the config, and returns a
    `keras.optimizers.Optimizer`. Running the same definition again, as a notebook cell does, replaces it.

    Args:
      name: The type, and the key under which its values stand.
      config_cls: What can be configured, a `Config` dataclass with a default for every field; `ClippingConfig` has
        the ways to clip gradients.

    Raises:
      UsageError: The name is not one or is taken, or `config_cls` is no config class.
    """
    if not (isinstance(name, str) and name.isidentifier() and not name.startswith("_")):
        raise UsageError(f"@register_optimizer: {name!r} is no name for an optimizer: letters, digits and _")
    if not (isinstance(config_cls, type) and issubclass(config_cls, Config)):
        raise UsageError(f"@register_optimizer({name!r}, …) takes a config class, received {config_cls!r}")

    def register(make: Maker) -> Maker:
        _require_free(name, make)
        _registered[name] = config_cls, make
        _extended.cache_clear()
        return make

    return register


def registered() -> dict[str, Callable[..., Any]]:
    """Returns what makes each registered optimizer, by its name."""
    return {name: make for name, (_, make) in _registered.items()}


@functools.cache
def _extended() -> type[OptimizerConfig]:
    """Returns the config class as it is until the next registration: two configs are equal only within one class."""
    if not _registered:
        return OptimizerConfig
    fields = [(name, cls, dataclasses.field(default_factory=cls)) for name, (cls, _) in _registered.items()]
    extended = dataclasses.make_dataclass("OptimizerConfig", fields, bases=(OptimizerConfig,), repr=False, eq=False)
    extended.__module__ = __name__
    return extended


def _require_free(name: str, make: Callable[..., Any]) -> None:
    if name in {field.name for field in dataclasses.fields(OptimizerConfig)}:
        raise UsageError(f"@register_optimizer: {name!r} is an optimizer of Everstep's own: choose another name")
    held = registered().get(name)
    if held is not None and _definition(held) != _definition(make):
        raise UsageError(f"@register_optimizer: {name!r} is registered already, by {'.'.join(_definition(held))}")


def _definition(make: Callable[..., Any]) -> tuple[str, str]:
    return getattr(make, "__module__", ""), getattr(make, "__qualname__", repr(make))
