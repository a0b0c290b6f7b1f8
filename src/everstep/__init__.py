"""Everstep trains Keras 3 models and never loses a step.

    import everstep as es

The names below are loaded when first used: `import everstep` loads neither Keras nor a backend.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names
from everstep.engine import set_default_backend as _set_default_backend

if TYPE_CHECKING:
    from everstep.config import Config, OneOfConfig, get_exp_config, get_task, register_experiment, register_task
    from everstep.data import DataConfig, Stream, get_labels, get_tfrecord_dataset, get_train_ds, get_valid_ds
    from everstep.engine import RuntimeConfig, get_distribution_strategy
    from everstep.errors import TrainingError, UsageError
    from everstep.experiment import run_experiment
    from everstep.experiment_config import ExperimentConfig, Mode
    from everstep.frontends.fit import fit
    from everstep.loop import Hook, ProgressivePolicy, ProgressiveTrainerConfig, StopAt, Trainer, TrainerConfig
    from everstep.loop.actions import EarlyStopping
    from everstep.model_garden import Controller
    from everstep.projects.training import Training
    from everstep.sweeps import sweep
    from everstep.task import ClassificationTask, CompiledTask, Task, TaskConfig, cond, value_and_grad
    from everstep.task.optim import OptimizationConfig
    from everstep.trained import predict


__version__ = "0.1.0"

_set_default_backend()
__getattr__, __dir__ = lazy_names(__name__, __file__)
