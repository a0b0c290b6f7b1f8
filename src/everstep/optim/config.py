"""`OptimizationConfig`: the optimizer, its learning rate and its warmup, and the average of the weights.

Names and defaults follow TensorFlow Model Garden, with one difference: what is not configured works. The
default is Adam at a constant 1e-3, without warmup.
"""

import dataclasses
from collections.abc import Iterator
from typing import Self

from everstep.config import Problem
from everstep.optim import checks
from everstep.optim.checks import CheckedConfig
from everstep.optim.optimizer_config import EMAConfig
from everstep.optim.registry import OptimizerConfig
from everstep.optim.schedule_config import LENGTHS, LrConfig, WarmupConfig


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

    @property
    def open_length(self) -> str | None:
        """The key of the learning rate's length where nobody has set it: it is as long as training then."""
        kind = self.learning_rate.type
        field = LENGTHS.get(kind or "")
        if field is None or getattr(self.learning_rate.get(), field) is not None:
            return None
        return f"learning_rate.{kind}.{field}"

    def with_length(self, train_steps: int) -> Self:
        """Returns a copy whose learning rate has its end at step `train_steps`, where nobody has set another."""
        if self.open_length is None:
            return self
        _, kind, field = self.open_length.split(".")
        steps = max(1, train_steps - self.learning_rate.get().offset)
        return self.replace(learning_rate={kind: {field: steps}})

    def _wrong(self) -> Iterator[Problem]:
        yield from checks.positive(self, "gradient_accumulation_steps")
