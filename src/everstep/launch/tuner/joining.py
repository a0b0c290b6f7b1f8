"""A trainer for some steps that nobody keeps: as a run has it, without a run."""

import contextlib
from collections.abc import Iterator

from everstep.engine import backend
from everstep.engine.precision import precision
from everstep.engine.strategy import configured_strategy, entered
from everstep.experiment_config import ExperimentConfig
from everstep.loop.creation import create_trainer
from everstep.loop.trainer import Trainer
from everstep.task.task import Task


@contextlib.contextmanager
def joined(
    params: ExperimentConfig, task: Task, evaluate: bool, trainer_cls: type[Trainer] = Trainer
) -> Iterator[Trainer]:
    """Inside the block there is a trainer on the devices, and in the precision, that the configuration says.

    Args:
      params: The experiment's configuration.
      task: The task.
      evaluate: Whether it will evaluate, too.
      trainer_cls: The class of the trainer.

    Raises:
      UsageError: The configuration cannot be used.
    """
    params.validate()
    backend.select(params.runtime.backend)
    with contextlib.ExitStack() as stack:
        stack.enter_context(entered(configured_strategy(params.runtime)))
        stack.enter_context(precision(params.runtime.mixed_precision_dtype))
        trainer = create_trainer(params, task, train=True, evaluate=evaluate, trainer_cls=trainer_cls)
        stack.callback(trainer.close)
        yield trainer
