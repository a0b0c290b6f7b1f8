"""`FlowTask`: three steps in a class, a project in YAML.

The code is in `everstep.frontends.flow`.
"""

from everstep.frontends.flow import DataSet as DataSet
from everstep.frontends.flow import FlowProject as FlowProject
from everstep.frontends.flow import FlowTask as FlowTask
from everstep.frontends.flow import create_task as create_task
from everstep.frontends.flow import main as main
from everstep.frontends.flow import run_flow as run_flow

__all__ = ["DataSet", "FlowProject", "FlowTask", "create_task", "main", "run_flow"]
