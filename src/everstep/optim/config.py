"""`OptimizationConfig`: the optimizer, its learning rate and its warmup, and the average of the weights.

Names and defaults follow TensorFlow Model Garden, with one difference: what is not configured works. The
default is Adam at a constant 1e-3, without warmup.
"""

import dataclasses

from everstep.config import Config
from everstep.optim.optimizer_config import EMAConfig, OptimizerConfig
from everstep.optim.registry import optimizer_config
from everstep.optim.schedule_config import LrConfig, WarmupConfig


@dataclasses.dataclass
class OptimizationConfig(Config):
    """Everything about how weights are updated."""

    optimizer: OptimizerConfig = dataclasses.field(default_factory=optimizer_config)
    """The optimizer."""
    learning_rate: LrConfig = LrConfig()
    """Its learning rate."""
    warmup: WarmupConfig = WarmupConfig()
    """What happens in the first steps."""
    ema: EMAConfig | None = None
    """A moving average of the weights; None for none."""
