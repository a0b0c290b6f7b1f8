"""`FlowTask`: three steps in a class, a project in YAML.

The code is in `everstep.frontends.flow`.
"""

from typing import TYPE_CHECKING

from everstep.lazy_names import lazy_names

if TYPE_CHECKING:
    from everstep.frontends.flow.program import main as main
    from everstep.frontends.flow.project import FlowProject as FlowProject
    from everstep.frontends.flow.running import create_task as create_task
    from everstep.frontends.flow.running import run_flow as run_flow
    from everstep.frontends.flow.task import DataSet as DataSet
    from everstep.frontends.flow.task import FlowTask as FlowTask

_WHERE = {
    "DataSet": "everstep.frontends.flow.task",
    "FlowProject": "everstep.frontends.flow.project",
    "FlowTask": "everstep.frontends.flow.task",
    "create_task": "everstep.frontends.flow.running",
    "main": "everstep.frontends.flow.program",
    "run_flow": "everstep.frontends.flow.running",
}

__all__ = sorted(_WHERE)
__getattr__, __dir__ = lazy_names(__name__, _WHERE)
