"""Loss scaling for float16, in which small gradients would otherwise become zero.

This file wraps optimizers for it; `task/grad.py` scales the loss, and adapts `apply` of such an optimizer to compiled
steps.
"""

import logging
from typing import Any, Literal

import keras

logger = logging.getLogger(__name__)

UPDATES = "optimizer_updates"
"""The name of the log that counts the steps that updated the weights, in runs with loss scaling."""

_NEVER = 2**31 - 1  # steps after which a fixed scale would grow

Scale = float | Literal["dynamic"] | None
"""A fixed scale, or one that adapts (`dynamic` or None)."""


@keras.saving.register_keras_serializable(package="everstep")
class FixedLossScaleOptimizer(keras.optimizers.LossScaleOptimizer):
    """Scales the loss by a fixed number; a step with non-finite gradients is skipped, as with a dynamic scale.

    Keras's own optimizer would halve the scale in such a step, and practically never raise it again.
    """

    def __init__(self, inner_optimizer: keras.optimizers.Optimizer, scale: float, **settings: Any) -> None:
        super().__init__(inner_optimizer, initial_scale=scale, dynamic_growth_steps=_NEVER, **settings)

    def _stateless_handle_non_finite_grads(self, optimizer_variables: Any, trainable_variables: Any) -> tuple[Any, Any]:
        return trainable_variables, optimizer_variables

    def _stateful_handle_non_finite_grads(self) -> None:
        """Does nothing: the step is skipped, and the scale is kept."""

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for saving."""
        config = super().get_config()
        return {"name": config["name"], "inner_optimizer": config["inner_optimizer"], "scale": self.initial_scale}


def scaling_loss(optimizer: keras.optimizers.Optimizer, scale: Scale) -> keras.optimizers.LossScaleOptimizer:
    """Wraps an optimizer for loss scaling, with a fixed scale or an adapting one (`dynamic` or None)."""
    if scale is None or scale == "dynamic":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return FixedLossScaleOptimizer(optimizer, float(scale))


def rescale(model: keras.Model, scale: Scale) -> None:
    """Sets the loss scale of the optimizer of a compiled model, which Keras itself wraps for float16.

    Args:
      model: The compiled model.
      scale: The configured scale; None keeps the optimizer as it was compiled.
    """
    optimizer = model.optimizer
    if scale is None:
        return
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        text = "runtime.loss_scale=%s has no effect: the optimizer of the compiled model %r does not scale the loss"
        logger.warning(text, scale, model.name)
        return
    held = optimizer.initial_scale if isinstance(optimizer, FixedLossScaleOptimizer) else "dynamic"
    if scale != held:
        model.optimizer = scaling_loss(optimizer.inner_optimizer, scale)


def find_scaling(optimizer: Any) -> keras.optimizers.LossScaleOptimizer | None:
    """Returns the first loss-scaling optimizer among an optimizer and those it wraps; None if there is none."""
    while optimizer is not None and not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        optimizer = getattr(optimizer, "inner_optimizer", None)
    return optimizer


def updates(optimizer: Any) -> dict[str, Any]:
    """Returns the log of the number of weight updates, if the optimizer may skip steps; else nothing."""
    return {} if find_scaling(optimizer) is None else {UPDATES: optimizer.iterations}
