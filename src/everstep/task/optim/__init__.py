"""Optimization: configs here; `everstep.task.optim.build` makes Keras objects of them and imports Keras."""

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
