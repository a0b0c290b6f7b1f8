"""`OptimizationConfig`: the optimizer, its learning rate and its warmup, and the average of the weights.

Names and defaults follow TensorFlow Model Garden, with one difference: what is not configured works. The
default is Adam at a constant 1e-3, without warmup.
"""

import dataclasses
from collections.abc import Iterator

from everstep.config import Problem
from everstep.optim import checks
from everstep.optim.checks import CheckedConfig
from everstep.optim.optimizer_config import EMAConfig
from everstep.optim.registry import OptimizerConfig
from everstep.optim.schedule_config import LrConfig, WarmupConfig


@dataclasses.dataclass
class OptimizationConfig(CheckedConfig):
    """Everything about how weights are updated."""

    optimizer: OptimizerConfig = dataclasses.field(default_factory=OptimizerConfig)
    """The optimizer."""
    learning_rate: LrConfig = LrConfig()
    """Its learning rate."""
    warmup: WarmupConfig = WarmupConfig()
    """What happens in the first steps."""
    ema: EMAConfig | None = None
    """A moving average of the weights; None for none."""
    gradient_accumulation_steps: int = 1
    """How many steps' gradients are averaged before the weights move; 1 moves them in every step."""

    def _wrong(self) -> Iterator[Problem]:
        yield from checks.positive(self, "gradient_accumulation_steps")
