"""Optimizers and learning rate schedules: their configuration, and how to register your own.

The code is in `everstep.task.optim`.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.task.optim import (
        ClippingConfig,
        EMAConfig,
        LrConfig,
        OptimizationConfig,
        OptimizerConfig,
        WarmupConfig,
        register_optimizer,
    )


__getattr__, __dir__ = lazy_names(__name__, __file__)
