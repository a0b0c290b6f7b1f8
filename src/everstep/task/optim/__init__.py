"""Optimization: configurations, without Keras, and what creates Keras's objects from them.

config.py        `OptimizationConfig`: optimizers, learning rates, warmup, clipping, EMA, accumulation: keys and
                 defaults; names of Model Garden
building.py      Keras's objects from a configuration: which class each name is
optimizers.py    optimizers that Keras lacks; variables without weight decay, by name
schedules.py     learning-rate schedules and warmups: their formulas
layer_rates.py   `layer_rates`: factors by name, decay by depth; what a block is
ema.py           a moving average of the weights: decay, which weights; when it is used: `loop/trainer.py`,
                 `export/model_export.py`
accumulation.py  `gradient_accumulation_steps`: how much each batch counts, the mean; TensorFlow's replicas:
                 `engine/replicas.py`
loss_scale.py    float16: a fixed or dynamic scale, steps that are skipped
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
