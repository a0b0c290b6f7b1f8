"""What a compiled model says of itself, in plain values: what a run that goes on must not change unasked.

Two processes that run the same program have to say the same. Names are therefore left out, for Keras numbers them per
process; so are seeds and initializers, for a checkpoint replaces what they lead to. A function is known by its
qualified name, an object without a configuration by its class and its plain attributes.
"""

import contextlib
import dataclasses
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import keras
from keras.src.utils import module_utils

from everstep.config import Config
from everstep.task.layer_lines import layer_lines, of_model
from everstep.task.plain_config import class_name, configuration, shortened, text, tree

_RATE = "learning_rate"


@dataclasses.dataclass
class ModelDescription(Config):
    """A model, layer by layer."""

    type: str = ""
    """Its class and, of a functional model, what it returns."""
    layers: dict[str, str] = dataclasses.field(default_factory=dict)
    """Each layer with its settings and, in a functional model, its inputs; of a large model only a digest."""
    optimizers: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The settings of each optimizer that it keeps in an attribute, beside the one it was compiled with."""


@dataclasses.dataclass
class Description:
    """A compiled model before training.

    Attributes:
      model: Its layers.
      optimizer: The optimizer's settings.
      loss: The loss, or those of each output.
      loss_weights: What each output's loss is multiplied by.
      learning_rate: The learning rate, where that is a constant.
    """

    model: ModelDescription
    optimizer: dict[str, Any]
    loss: str
    loss_weights: str
    learning_rate: float | None


def describe(model: keras.Model) -> Description:
    """Describes a model as it was compiled: what `leave` was told is not taken for a change."""
    with _without_importing_tensorflow():
        return _described(model)


def _described(model: keras.Model) -> Description:
    optimizer, rate = _as_compiled(model.optimizer, _optimizer(model.optimizer))
    weights = getattr(getattr(model, "_compile_loss", None), "_user_loss_weights", None)
    return Description(
        model=_as_compiled(model, _model(model)),
        optimizer=optimizer,
        loss=shortened(text(getattr(model, "loss", None)) or ""),
        loss_weights=shortened(text(weights) or ""),
        learning_rate=rate,
    )


def leave(model: keras.Model, description: Description) -> None:
    """Notes how a model is after training, which may have changed its learning rate, or built it.

    Args:
      model: The model.
      description: What `describe` returned before.
    """
    compiled = description.optimizer, description.learning_rate
    with _without_importing_tensorflow():
        _left[model.optimizer] = compiled, _optimizer(model.optimizer)
        _left[model] = description.model, _model(model)


def settings(model: keras.Model) -> tuple[ModelDescription, dict[str, Any]]:
    """Returns how a model and its optimizer are set now, but for the learning rate."""
    with _without_importing_tensorflow():
        return _model(model), {name: value for name, value in _optimizer(model.optimizer)[0].items() if name != _RATE}


@contextlib.contextmanager
def _without_importing_tensorflow() -> Iterator[None]:
    """Keras looks for TensorFlow's types in each configuration; where nobody has imported it, there can be none."""
    module, known = module_utils.tensorflow, module_utils.tensorflow._available
    if known is None and module.name not in sys.modules:
        module._available = False
    try:
        yield
    finally:
        module._available = known


def constant_rate(optimizer: Any) -> float | None:
    """Returns the learning rate of an optimizer, or None where it follows a schedule."""
    rate = optimizer.learning_rate
    return float(keras.ops.convert_to_numpy(rate)) if isinstance(rate, keras.Variable) else None


_left: weakref.WeakKeyDictionary[Any, tuple[Any, Any]] = weakref.WeakKeyDictionary()
"""Of each object that was trained: how it was described before, and after."""


def _as_compiled(owner: Any, now: Any) -> Any:
    before, left = _left.get(owner, (now, None))
    return before if now == left else now


def _model(model: keras.Model) -> ModelDescription:
    held = {
        name: _optimizer(value)[0]
        for name, value in sorted(vars(model).items())
        if isinstance(value, keras.optimizers.Optimizer) and name != "optimizer"
    }
    return ModelDescription(type=of_model(model), layers=layer_lines(model), optimizers=held)


def _optimizer(optimizer: Any) -> tuple[dict[str, Any], float | None]:
    settings = {"class": class_name(optimizer), **tree(configuration(optimizer))}
    schedule = getattr(optimizer, "_learning_rate", None)
    if _RATE not in settings and callable(schedule):  # it says nothing of itself, so nor does the optimizer
        settings[_RATE] = {"class": class_name(schedule), **tree(configuration(schedule))}
    return settings, constant_rate(optimizer)
