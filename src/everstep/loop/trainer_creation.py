"""`create_trainer`: a trainer from a task and its configuration."""

from typing import Any

import keras

from everstep.engine import backend, explain, precision
from everstep.errors import UsageError
from everstep.loop.progressive import ProgressiveTrainer, is_progressive
from everstep.loop.trainer import Trainer
from everstep.task import Task
from everstep.task.optim import rescale


def create_trainer(
    params: Any, task: Task, train: bool, evaluate: bool, trainer_cls: type[Trainer] = Trainer
) -> Trainer:
    """Seeds everything, builds model and optimizer as configured, and returns a trainer of them.

    Args:
      params: An ExperimentConfig.
      task: The task.
      train: Whether the trainer will train.
      evaluate: Whether the trainer will evaluate.
      trainer_cls: The class of the trainer; for a task that is trained in stages, a `ProgressiveTrainer`.

    Raises:
      UsageError: The task is trained in stages, and `trainer_cls` cannot do that.
    """
    if params.trainer.optimizer_config.unset_lengths:
        params = params.replace(trainer=params.trainer.with_learning_rate_length())
    backend.prepare(params.runtime.seed, params.runtime.deterministic)
    with precision(params.runtime.mixed_precision_dtype):
        if is_progressive(task):
            return _progressive(trainer_cls)(params, task, train=train, evaluate=evaluate)
        with explain(task):
            model = task.build_model()
        optimizer = _optimizer(params, task, model) if train else None
        return trainer_cls(params, task, model, optimizer, train=train, evaluate=evaluate)


def _progressive(trainer_cls: type[Trainer]) -> type[ProgressiveTrainer]:
    """Returns the class that trains in stages: the requested one, if it is a ProgressiveTrainer."""
    if issubclass(trainer_cls, ProgressiveTrainer):
        return trainer_cls
    if trainer_cls is Trainer:
        return ProgressiveTrainer
    raise UsageError(
        "but the task is trained in stages",
        key="trainer_cls",
        received=trainer_cls.__name__,
        remedy="derive it from ProgressiveTrainer",
    )


def _optimizer(params: Any, task: Task, model: keras.Model) -> keras.Optimizer:
    """Returns the optimizer that the model was compiled with, or the configured one."""
    if not model.compiled or model.optimizer is None:
        return task.create_optimizer(params.trainer.optimizer_config, params.runtime)
    if params.runtime.mixed_precision_dtype == "float16":
        rescale(model, params.runtime.loss_scale)
    return model.optimizer
