"""`ExperimentConfig`: task, trainer and runtime; what a registered factory returns. Imports no Keras."""

import dataclasses

from everstep.config import Config
from everstep.engine.config import RuntimeConfig
from everstep.errors import UsageError, nearest
from everstep.loop.config import TrainerConfig
from everstep.task.config import TaskConfig

MODES = ("train", "eval", "train_and_eval", "train_and_post_eval", "continuous_eval")
"""What a run can be asked to do."""


def check_mode(mode: str) -> None:
    """Refuses a mode there is not.

    Raises:
      UsageError: With the nearest names.
    """
    if mode not in MODES:
        raise UsageError(f"mode: unknown mode {mode!r}; {nearest(mode, MODES)}")


@dataclasses.dataclass
class ExperimentConfig(Config):
    """Everything that decides how a run goes.

    @everstep.register_experiment("mnist/small")
    def small():
        return ExperimentConfig(task=MnistConfig(hidden=16), trainer=TrainerConfig(train_steps=500))
    """

    task: TaskConfig = dataclasses.field(default_factory=TaskConfig)
    """What is learned, from which data."""
    trainer: TrainerConfig = dataclasses.field(default_factory=TrainerConfig)
    """How long, with which optimizer, and what happens on the way."""
    runtime: RuntimeConfig = dataclasses.field(default_factory=RuntimeConfig)
    """Where and how it computes."""
