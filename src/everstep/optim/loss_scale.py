"""Scaling the loss for float16, whose gradients are too small for the type otherwise."""

from typing import Any, Literal

import keras

_NEVER = 2**31 - 1  # steps until a fixed scale would grow


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


def scaling_loss(
    optimizer: keras.optimizers.Optimizer, scale: float | Literal["dynamic"] | None
) -> keras.optimizers.LossScaleOptimizer:
    """Wraps an optimizer: with a fixed scale, or with one that adapts (`dynamic` or None)."""
    if scale is None or scale == "dynamic":
        return keras.optimizers.LossScaleOptimizer(optimizer)
    return FixedLossScaleOptimizer(optimizer, float(scale))
