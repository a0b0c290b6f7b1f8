"""Optimizers of your own, under a name that configurations can choose.

    @dataclasses.dataclass
    class LionConfig(ClippingConfig):
        beta_1: float = 0.9

    @register_optimizer("lion", LionConfig)
    def lion(learning_rate, **fields):
        return keras.optimizers.Lion(learning_rate, **fields)

From then on `optimizer: {type: lion, lion: {beta_1: 0.95}}` is valid in every experiment that is made. Nothing here
imports Keras: it is loaded by whoever makes the optimizer.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from everstep.config import Config
from everstep.errors import UsageError
from everstep.optim.optimizer_config import OptimizerConfig

Maker = TypeVar("Maker", bound=Callable[..., Any])

_BUILT_IN = {field.name for field in dataclasses.fields(OptimizerConfig)}
_registered: dict[str, tuple[type[Config], Callable[..., Any]]] = {}


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


def optimizer_config() -> OptimizerConfig:
    """Returns a new config with a branch for every optimizer, those that were registered included."""
    return _extended()()


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
    if name in _BUILT_IN:
        raise UsageError(f"@register_optimizer: {name!r} is an optimizer of Everstep's own: choose another name")
    held = registered().get(name)
    if held is not None and _definition(held) != _definition(make):
        raise UsageError(f"@register_optimizer: {name!r} is registered already, by {'.'.join(_definition(held))}")


def _definition(make: Callable[..., Any]) -> tuple[str, str]:
    return getattr(make, "__module__", ""), getattr(make, "__qualname__", repr(make))
