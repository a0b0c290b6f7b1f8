"""How long to train, and what happens on the way."""

import dataclasses

from everstep.config import Config, ConfigError, Problem
from everstep.optim.config import OptimizationConfig


@dataclasses.dataclass
class TrainerConfig(Config):
    """Steps, intervals and the optimizer. All steps are absolute: a resumed run does not start to count anew."""

    optimizer_config: OptimizationConfig = dataclasses.field(default_factory=OptimizationConfig)
    """Optimizer, learning rate and warm-up."""
    train_steps: int = 1000
    """The step at which training is done."""
    steps_per_loop: int = 100
    """The logging window: metrics and means are reported, and start anew, after so many steps."""
    summary_interval: int | None = None
    """Record training logs only every so many steps, a multiple of steps_per_loop. None: every loop."""
    checkpoint_interval: int = 1000
    """Save at the first loop's end at or after each multiple of this. 0: only when training is done."""
    max_to_keep: int = 5
    """How many of the newest checkpoints to keep."""
    validation_steps: int = -1
    """Batches per evaluation; -1 is the whole validation set, every sample once."""
    validation_interval: int = 1000
    """Steps between evaluations."""
    validation_summary_subdir: str = "validation"
    """Folder of the evaluation's TensorBoard events."""
    continuous_eval_timeout: int = 3600
    """continuous_eval ends when no new checkpoint has come for so many seconds."""

    def validate(self) -> None:
        """Checks the numbers.

        Raises:
          UsageError: One of them cannot be used; names the key.
        """
        super().validate()
        least = {
            "train_steps": 1,
            "steps_per_loop": 1,
            "checkpoint_interval": 0,
            "max_to_keep": 1,
            "validation_interval": 1,
        }
        problems = [
            Problem(name, f"received {getattr(self, name)}, must be at least {bound}")
            for name, bound in least.items()
            if getattr(self, name) < bound
        ]
        if self.validation_steps < 1 and self.validation_steps != -1:
            text = f"received {self.validation_steps}, must be at least 1, or -1 for the whole validation set"
            problems.append(Problem("validation_steps", text))
        if self.summary_interval is not None and self.summary_interval % self.steps_per_loop:
            text = f"received {self.summary_interval}, must be a multiple of steps_per_loop ({self.steps_per_loop})"
            problems.append(Problem("summary_interval", text))
        if problems:
            raise ConfigError(problems)
