"""Several tasks that share one model: trained in turn or jointly, evaluated one by one. Imports no Keras."""

import importlib
from typing import Any

from everstep.config import register_task
from everstep.task.multitask.config import MultiTaskConfig, SamplerConfig, TaskRoutine

__all__ = ["MultiTaskConfig", "SamplerConfig", "TaskRoutine"]


@register_task(MultiTaskConfig)
def multi_task(config: MultiTaskConfig, **kwargs: Any) -> Any:
    """Creates the task; imports Keras only now."""
    return importlib.import_module("everstep.task.multitask.task").MultiTask(config, **kwargs)
