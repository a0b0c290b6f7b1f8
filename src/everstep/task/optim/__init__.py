"""Optimization: configs, without Keras; `everstep.task.optim.build` creates Keras objects from them."""

from everstep.task.optim.config import (
    ClippingConfig,
    EMAConfig,
    LrConfig,
    OptimizationConfig,
    OptimizerConfig,
    WarmupConfig,
    register_optimizer,
)

__all__ = [
    "ClippingConfig",
    "EMAConfig",
    "LrConfig",
    "OptimizationConfig",
    "OptimizerConfig",
    "WarmupConfig",
    "register_optimizer",
]
