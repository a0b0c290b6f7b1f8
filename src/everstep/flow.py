"""`FlowTask`: three steps in a class, a project in YAML.

The code is in `everstep.projects.flow`.
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.flow import DataSet, FlowProject, FlowTask, create_task, main, run_flow


__getattr__, __dir__ = lazy_names(__name__, __file__)
