"""Everstep trains Keras 3 models and never loses a step.

    import everstep as es

The names below are loaded when first used: `import everstep` loads neither Keras nor a backend.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.config.base import Config as Config
    from everstep.config.base import OneOfConfig as OneOfConfig
    from everstep.config.registry import get_exp_config as get_exp_config
    from everstep.config.registry import get_task as get_task
    from everstep.config.registry import register_experiment as register_experiment
    from everstep.config.registry import register_task as register_task
    from everstep.data.config import DataConfig as DataConfig
    from everstep.data.stream import Stream as Stream
    from everstep.data.tfrecord import get_labels as get_labels
    from everstep.data.tfrecord import get_tfrecord_dataset as get_tfrecord_dataset
    from everstep.data.tfrecord import get_train_ds as get_train_ds
    from everstep.data.tfrecord import get_valid_ds as get_valid_ds
    from everstep.engine.config import RuntimeConfig as RuntimeConfig
    from everstep.engine.strategy import get_distribution_strategy as get_distribution_strategy
    from everstep.errors import TrainingError as TrainingError
    from everstep.errors import UsageError as UsageError
    from everstep.experiment import run_experiment as run_experiment
    from everstep.experiment_config import ExperimentConfig as ExperimentConfig
    from everstep.experiment_config import Mode as Mode
    from everstep.export.predict.predicting import predict as predict
    from everstep.frontends.fit.fit import fit as fit
    from everstep.frontends.training.training import Training as Training
    from everstep.launch.sweep.sweeping import sweep as sweep
    from everstep.loop.actions.early_stopping import EarlyStopping as EarlyStopping
    from everstep.loop.config import ProgressiveTrainerConfig as ProgressiveTrainerConfig
    from everstep.loop.config import TrainerConfig as TrainerConfig
    from everstep.loop.controller import Controller as Controller
    from everstep.loop.hooks import Hook as Hook
    from everstep.loop.progressive import ProgressivePolicy as ProgressivePolicy
    from everstep.loop.trainer import Trainer as Trainer
    from everstep.task.classification import ClassificationTask as ClassificationTask
    from everstep.task.compiled import CompiledTask as CompiledTask
    from everstep.task.config import TaskConfig as TaskConfig
    from everstep.task.grad import cond as cond
    from everstep.task.grad import value_and_grad as value_and_grad
    from everstep.task.optim.config import OptimizationConfig as OptimizationConfig
    from everstep.task.task import Task as Task

_WHERE = {
    "ClassificationTask": "task.classification",
    "CompiledTask": "task.compiled",
    "Config": "config.base",
    "Controller": "loop.controller",
    "DataConfig": "data.config",
    "EarlyStopping": "loop.actions.early_stopping",
    "ExperimentConfig": "experiment_config",
    "Hook": "loop.hooks",
    "Mode": "experiment_config",
    "OneOfConfig": "config.base",
    "OptimizationConfig": "task.optim.config",
    "ProgressivePolicy": "loop.progressive",
    "ProgressiveTrainerConfig": "loop.config",
    "RuntimeConfig": "engine.config",
    "Stream": "data.stream",
    "Task": "task.task",
    "TaskConfig": "task.config",
    "Trainer": "loop.trainer",
    "TrainerConfig": "loop.config",
    "Training": "frontends.training.training",
    "TrainingError": "errors",
    "UsageError": "errors",
    "cond": "task.grad",
    "fit": "frontends.fit.fit",
    "get_distribution_strategy": "engine.strategy",
    "get_exp_config": "config.registry",
    "get_labels": "data.tfrecord",
    "get_task": "config.registry",
    "get_tfrecord_dataset": "data.tfrecord",
    "get_train_ds": "data.tfrecord",
    "get_valid_ds": "data.tfrecord",
    "predict": "export.predict.predicting",
    "register_experiment": "config.registry",
    "register_task": "config.registry",
    "run_experiment": "experiment",
    "sweep": "launch.sweep.sweeping",
    "value_and_grad": "task.grad",
}

__all__ = sorted(_WHERE)
__version__ = "0.1.0"

importlib.import_module("everstep.engine.backend").set_default_backend()


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"everstep.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
