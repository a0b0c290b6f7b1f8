"""Several tasks, one model.

The code is in `everstep.task.multitask`.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.task.multitask.config import MultiTaskConfig as MultiTaskConfig
    from everstep.task.multitask.config import SamplerConfig as SamplerConfig
    from everstep.task.multitask.config import TaskRoutine as TaskRoutine

_WHERE = {
    "MultiTaskConfig": "everstep.task.multitask.config",
    "SamplerConfig": "everstep.task.multitask.config",
    "TaskRoutine": "everstep.task.multitask.config",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
