"""Scaling the loss for float16, whose gradients are too small for the type otherwise."""

import logging
from typing import Any, Literal

import keras

logger = logging.getLogger(__name__)

UPDATES = "optimizer_updates"
"""Under this name the logs of a run that scales its loss say how many of its steps changed the weights."""

_NEVER = 2**31 - 1  # steps until a fixed scale would grow

Scale = float | Literal["dynamic"] | None
"""A number for good, or one that adapts (`dynamic`, and None)."""


@keras.saving.register_keras_serializable(package="everstep")
class FixedLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Scales by one number for good; a step whose gradients are not finite is left out, as with a dynamic scale.

    Keras's own halves its scale then, and would not raise it again for years.
    """

    def __init__(self, inner_optimizer: keras.optimizers.Optimizer, scale: float, **settings: Any) -> None:
        super().__init__(inner_optimizer, initial_scale=scale, dynamic_growth_steps=_NEVER, **settings)

    def _stateless_handle_non_finite_grads(self, optimizer_variables: Any, trainable_variables: Any) -> tuple[Any, Any]:
        return trainable_variables, optimizer_variables

    def _stateful_handle_non_finite_grads(self) -> None:
        """Leaves everything as it is."""

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        config = super().get_config()
        return {"name": config["name"], "inner_optimizer": config["inner_optimizer"], "scale": self.initial_scale}


def scaling_loss(optimizer: keras.optimizers.Optimizer, scale: Scale) -> keras.optimizers.LossScaleOptimizer:
    """Wraps an optimizer: with a fixed scale, or with one that adapts (`dynamic` or None)."""
    if scale is None or scale == "dynamic":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return FixedLossScaleOptimizer(optimizer, float(scale))


def rescale(model: keras.Model, scale: Scale) -> None:
    """Gives the optimizer of a compiled model this scale; Keras wraps one that is to train in float16 by itself.

    Args:
      model: The model.
      scale: What is configured; None leaves the optimizer as it was compiled.
    """
    optimizer = model.optimizer
    if scale is None:
        return
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        text = "runtime.loss_scale=%s does nothing: the optimizer that the model %r is compiled with scales no loss"
        logger.warning(text, scale, model.name)
        return
    held = optimizer.initial_scale if isinstance(optimizer, FixedLossScaleOptimizer) else "dynamic"
    if scale != held:
        model.optimizer = scaling_loss(optimizer.inner_optimizer, scale)


def find_scaling(optimizer: Any) -> keras.optimizers.LossScaleOptimizer | None:
    """Returns the one that scales the loss among an optimizer and those it wraps."""
    while optimizer is not None and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def updates(optimizer: Any) -> dict[str, Any]:
    """Returns, for the logs, how often an optimizer that may leave out steps has changed the weights."""
    return {} if find_scaling(optimizer) is None else {UPDATES: optimizer.iterations}
