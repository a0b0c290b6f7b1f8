"""Several tasks, one model.

The code is in `everstep.task.multitask`.
"""

from everstep.task.multitask import MultiTaskConfig as MultiTaskConfig
from everstep.task.multitask import SamplerConfig as SamplerConfig
from everstep.task.multitask import TaskRoutine as TaskRoutine

__all__ = ["MultiTaskConfig", "SamplerConfig", "TaskRoutine"]
