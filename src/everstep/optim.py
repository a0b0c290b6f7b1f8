"""Optimizers and learning rate schedules: their configuration, and how to register your own.

The code is in `everstep.task.optim`.
"""

from everstep.task.optim import ClippingConfig as ClippingConfig
from everstep.task.optim import EMAConfig as EMAConfig
from everstep.task.optim import LrConfig as LrConfig
from everstep.task.optim import OptimizationConfig as OptimizationConfig
from everstep.task.optim import OptimizerConfig as OptimizerConfig
from everstep.task.optim import WarmupConfig as WarmupConfig
from everstep.task.optim import register_optimizer as register_optimizer

__all__ = [
    "ClippingConfig",
    "EMAConfig",
    "LrConfig",
    "OptimizationConfig",
    "OptimizerConfig",
    "WarmupConfig",
    "register_optimizer",
]
