"""Everstep trains Keras 3 models and never loses a step.

    import everstep as es

The names below are loaded when first used: `import everstep` loads neither Keras nor a backend.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from everstep.config.base import Config as Config
    from everstep.config.one_of import OneOfConfig as OneOfConfig
    from everstep.config.registry import get_exp_config as get_exp_config
    from everstep.config.registry import get_task as get_task
    from everstep.config.registry import register_experiment as register_experiment
    from everstep.config.registry import register_task as register_task
    from everstep.data.config import DataConfig as DataConfig
    from everstep.data.record_dataset import get_tfrecord_dataset as get_tfrecord_dataset
    from everstep.data.record_dataset import get_train_ds as get_train_ds
    from everstep.data.record_dataset import get_valid_ds as get_valid_ds
    from everstep.data.record_files import get_labels as get_labels
    from everstep.data.stream import Stream as Stream
    from everstep.engine.config import RuntimeConfig as RuntimeConfig
    from everstep.engine.strategy import get_distribution_strategy as get_distribution_strategy
    from everstep.experiment import run_experiment as run_experiment
    from everstep.experiment_config import ExperimentConfig as ExperimentConfig
    from everstep.fitting.fit import fit as fit
    from everstep.grad import cond as cond
    from everstep.grad import value_and_grad as value_and_grad
    from everstep.loop.config import TrainerConfig as TrainerConfig
    from everstep.loop.controller import Controller as Controller
    from everstep.loop.progressive import ProgressivePolicy as ProgressivePolicy
    from everstep.loop.progressive_config import ProgressiveTrainerConfig as ProgressiveTrainerConfig
    from everstep.loop.trainer import Trainer as Trainer
    from everstep.optim.config import OptimizationConfig as OptimizationConfig
    from everstep.task.compiled import CompiledTask as CompiledTask
    from everstep.task.config import TaskConfig as TaskConfig
    from everstep.task.task import Task as Task
    from everstep.training.training import Training as Training

_WHERE = {
    "CompiledTask": "task.compiled",
    "Config": "config.base",
    "Controller": "loop.controller",
    "DataConfig": "data.config",
    "ExperimentConfig": "experiment_config",
    "OneOfConfig": "config.one_of",
    "OptimizationConfig": "optim.config",
    "ProgressivePolicy": "loop.progressive",
    "ProgressiveTrainerConfig": "loop.progressive_config",
    "RuntimeConfig": "engine.config",
    "Stream": "data.stream",
    "Task": "task.task",
    "TaskConfig": "task.config",
    "Trainer": "loop.trainer",
    "TrainerConfig": "loop.config",
    "Training": "training.training",
    "cond": "grad",
    "fit": "fitting.fit",
    "get_distribution_strategy": "engine.strategy",
    "get_exp_config": "config.registry",
    "get_labels": "data.record_files",
    "get_task": "config.registry",
    "get_tfrecord_dataset": "data.record_dataset",
    "get_train_ds": "data.record_dataset",
    "get_valid_ds": "data.record_dataset",
    "register_experiment": "config.registry",
    "register_task": "config.registry",
    "run_experiment": "experiment",
    "value_and_grad": "grad",
}

__all__ = sorted(_WHERE)
__version__ = "0.1.0"

importlib.import_module("everstep.engine.backend").choose_what_is_there()


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'everstep' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"everstep.{_WHERE[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
