"""Optimization: configurations, without Keras, and what creates Keras's objects from them.

config.py        `OptimizationConfig`: optimizer, learning rate, warmup, average
building.py      Keras's objects from a configuration
optimizers.py    optimizers that Keras lacks; variables by name
schedules.py     learning-rate schedules
layer_rates.py   learning rates that differ from layer to layer
ema.py           a moving average of the weights
accumulation.py  gradients of several batches
loss_scale.py    loss scaling for float16
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.task.optim.accumulation import (
        batch_counts,
        weigh_batches,
    )
    from everstep.task.optim.building import build
    from everstep.task.optim.config import (
        ClippingConfig,
        EMAConfig,
        LrConfig,
        OptimizationConfig,
        OptimizerConfig,
        Patterns,
        WarmupConfig,
        patterns,
        register_optimizer,
    )
    from everstep.task.optim.ema import (
        averaged_keys,
        find_average,
        with_averages,
    )
    from everstep.task.optim.layer_rates import rate_table
    from everstep.task.optim.loss_scale import (
        UPDATES,
        find_scaling,
        rescale,
        scaling_loss,
        updates,
    )
    from everstep.task.optim.optimizers import (
        held_optimizers,
        parts_of,
        set_names,
        with_inner,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
