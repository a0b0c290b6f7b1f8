"""What of Keras and of Everstep itself a configuration may build by name.

Both packages also read files, fetch from the network and write to disk, so not everything in them is open to a
configuration: only classes whose making does nothing but describe a model, a loss, an optimizer, a task.
"""

import sys
import types
from typing import Any

PACKAGES = ("keras", "everstep")
"""Packages that are open in part."""

KERAS_MODULES = (
    "keras",
    "keras.activations",
    "keras.constraints",
    "keras.initializers",
    "keras.layers",
    "keras.losses",
    "keras.metrics",
    "keras.models",
    "keras.optimizers",
    "keras.optimizers.schedules",
    "keras.regularizers",
)
"""The modules of Keras that names may lead into; of Everstep it is all of them."""

# Layers that run code, or read what a path or a URL names.
_REFUSED = {
    "FlaxLayer",
    "IndexLookup",
    "JaxLayer",
    "Lambda",
    "TextVectorization",
    "TFSMLayer",
    "TorchModuleWrapper",
}
_BASES = {
    "constraints": "Constraint",
    "initializers": "Initializer",
    "layers": "Layer",
    "losses": "Loss",
    "metrics": "Metric",
    "optimizers": "Optimizer",
    "regularizers": "Regularizer",
}
_OWN_BASES = {"config.base.Config", "task.task.Task"}
_NO_ACTIVATIONS = {"deserialize", "get", "serialize"}


def is_open(module: str) -> bool:
    """Tells whether names may lead into a module of these packages."""
    return module in KERAS_MODULES or module.partition(".")[0] == "everstep"


def refusal(value: Any, package: str) -> str | None:
    """Returns why an object of `package` must not be built by a configuration, or None if it may."""
    if package == "keras" and _is_activation(value):
        return None
    if not isinstance(value, type):
        return f"of {package!r} a configuration builds classes, and this is {_spell(value)}"
    if package == "everstep" and _names(value) & {f"everstep.{base}" for base in _OWN_BASES}:
        return None
    if package == "keras" and not _REFUSED.isdisjoint(_refused_names(value)):
        return f"{value.__name__} runs code or reads files when it is made; make it in a module of your own"
    if not issubclass(value, _bases()):
        kinds = "Config, Task, " if package == "everstep" else ""
        return f"{value.__name__} is none of {kinds}{', '.join(_BASES.values())}, LearningRateSchedule"
    return None


def _bases() -> tuple[type, ...]:
    keras = sys.modules.get("keras")
    if keras is None:
        return ()
    schedule = keras.optimizers.schedules.LearningRateSchedule
    return (schedule, *(getattr(getattr(keras, module), name) for module, name in _BASES.items()))


def _is_activation(value: Any) -> bool:
    if not isinstance(value, types.FunctionType) or value.__name__ in _NO_ACTIVATIONS:
        return False
    return getattr(sys.modules["keras"].activations, value.__name__, None) is value


def _names(cls: type) -> set[str]:
    return {f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__}


def _refused_names(cls: type) -> set[str]:
    """Returns the names of a layer's bases; the backend's own base, which may share one of them, is left out."""
    return {base.__name__ for base in cls.__mro__ if not base.__module__.startswith("keras.src.backend.")}


def _spell(value: Any) -> str:
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{name} ({type(value).__name__})"
