"""Optimization: configs here; `everstep.optim.build` makes Keras objects of them and imports Keras."""

from everstep.optim.config import OptimizationConfig
from everstep.optim.optimizer_config import ClippingConfig, EMAConfig
from everstep.optim.registry import OptimizerConfig, register_optimizer
from everstep.optim.schedule_config import LrConfig, WarmupConfig

__all__ = [
    "ClippingConfig",
    "EMAConfig",
    "LrConfig",
    "OptimizationConfig",
    "OptimizerConfig",
    "WarmupConfig",
    "register_optimizer",
]
