"""Optimizers and learning rate schedules: their configuration, and how to register your own.

The code is in `everstep.task.optim`.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.task.optim.config import ClippingConfig as ClippingConfig
    from everstep.task.optim.config import EMAConfig as EMAConfig
    from everstep.task.optim.config import LrConfig as LrConfig
    from everstep.task.optim.config import OptimizationConfig as OptimizationConfig
    from everstep.task.optim.config import OptimizerConfig as OptimizerConfig
    from everstep.task.optim.config import WarmupConfig as WarmupConfig
    from everstep.task.optim.config import register_optimizer as register_optimizer

_WHERE = {
    "ClippingConfig": "everstep.task.optim.config",
    "EMAConfig": "everstep.task.optim.config",
    "LrConfig": "everstep.task.optim.config",
    "OptimizationConfig": "everstep.task.optim.config",
    "OptimizerConfig": "everstep.task.optim.config",
    "WarmupConfig": "everstep.task.optim.config",
    "register_optimizer": "everstep.task.optim.config",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
