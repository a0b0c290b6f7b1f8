"""Optimization: configs here; `everstep.optim.build` makes Keras objects of them and imports Keras."""

from everstep.optim.config import OptimizationConfig
from everstep.optim.optimizer_config import OptimizerConfig
from everstep.optim.schedule_config import LrConfig, WarmupConfig

__all__ = ["LrConfig", "OptimizationConfig", "OptimizerConfig", "WarmupConfig"]
