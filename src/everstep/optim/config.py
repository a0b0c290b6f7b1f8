"""`OptimizationConfig`: the optimizer, its learning rate and its warmup.

Names and defaults follow TensorFlow Model Garden, with one difference: what is not configured works. The
default is Adam at a constant 1e-3, without warmup.
"""

import dataclasses

from everstep.config import Config
from everstep.optim.optimizer_config import OptimizerConfig
from everstep.optim.schedule_config import LrConfig, WarmupConfig


@dataclasses.dataclass
class OptimizationConfig(Config):
    """Everything about how weights are updated."""

    optimizer: OptimizerConfig = OptimizerConfig()
    """The optimizer."""
    learning_rate: LrConfig = LrConfig()
    """Its learning rate."""
    warmup: WarmupConfig = WarmupConfig()
    """What happens in the first steps."""
