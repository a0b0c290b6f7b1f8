"""`ExperimentConfig`: task, trainer and runtime; what a registered factory returns. Imports no Keras."""

import dataclasses

from everstep.config import Config
from everstep.engine.config import RuntimeConfig
from everstep.loop.config import TrainerConfig
from everstep.task.config import TaskConfig


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
