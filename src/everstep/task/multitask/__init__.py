"""Several tasks that share one model: trained in turn or jointly, evaluated one by one. Imports no Keras.

config.py   `MultiTaskConfig`: which tasks, `task_weight`, interleaving or joint, sampler: defaults and refusals
task.py     `MultiTask`: several tasks as one: which model each has, losses and metrics by task, what is refused
streams.py  the streams of several tasks as one; which task is next; which ends first
"""

import importlib
from typing import TYPE_CHECKING, Any

from everstep.config import register_task
from everstep.doors import lazy_names
from everstep.task.multitask.config import MultiTaskConfig

if TYPE_CHECKING:
    from everstep.task.multitask.config import SamplerConfig, TaskRoutine
    from everstep.task.multitask.task import MultiTask


@register_task(MultiTaskConfig)
def multi_task(config: MultiTaskConfig, **kwargs: Any) -> Any:
    """Creates the task; imports Keras only now."""
    return importlib.import_module("everstep.task.multitask.task").MultiTask(config, **kwargs)


__getattr__, __dir__ = lazy_names(__name__, __file__)
