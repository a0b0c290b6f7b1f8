"""Everstep trains Keras 3 models and never loses a step.

    import everstep as es

The names below are loaded when first used: `import everstep` loads neither Keras nor a backend.
"""

import importlib
from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

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
    "ClassificationTask": "everstep.task.classification",
    "CompiledTask": "everstep.task.compiled",
    "Config": "everstep.config.base",
    "Controller": "everstep.loop.controller",
    "DataConfig": "everstep.data.config",
    "EarlyStopping": "everstep.loop.actions.early_stopping",
    "ExperimentConfig": "everstep.experiment_config",
    "Hook": "everstep.loop.hooks",
    "Mode": "everstep.experiment_config",
    "OneOfConfig": "everstep.config.base",
    "OptimizationConfig": "everstep.task.optim.config",
    "ProgressivePolicy": "everstep.loop.progressive",
    "ProgressiveTrainerConfig": "everstep.loop.config",
    "RuntimeConfig": "everstep.engine.config",
    "Stream": "everstep.data.stream",
    "Task": "everstep.task.task",
    "TaskConfig": "everstep.task.config",
    "Trainer": "everstep.loop.trainer",
    "TrainerConfig": "everstep.loop.config",
    "Training": "everstep.frontends.training.training",
    "TrainingError": "everstep.errors",
    "UsageError": "everstep.errors",
    "cond": "everstep.task.grad",
    "fit": "everstep.frontends.fit.fit",
    "get_distribution_strategy": "everstep.engine.strategy",
    "get_exp_config": "everstep.config.registry",
    "get_labels": "everstep.data.tfrecord",
    "get_task": "everstep.config.registry",
    "get_tfrecord_dataset": "everstep.data.tfrecord",
    "get_train_ds": "everstep.data.tfrecord",
    "get_valid_ds": "everstep.data.tfrecord",
    "predict": "everstep.export.predict.predicting",
    "register_experiment": "everstep.config.registry",
    "register_task": "everstep.config.registry",
    "run_experiment": "everstep.experiment",
    "sweep": "everstep.launch.sweep.sweeping",
    "value_and_grad": "everstep.task.grad",
}

__all__ = sorted(_WHERE)
__version__ = "0.1.0"

importlib.import_module("everstep.engine.backend").set_default_backend()
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
