"""Several tasks, one model.

The code is in `everstep.task.multitask`.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.task.multitask import MultiTaskConfig, SamplerConfig, TaskRoutine


__getattr__, __dir__ = lazy_names(__name__, __file__)
