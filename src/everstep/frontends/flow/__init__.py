"""Flows: a task is three steps, a variant is a subclass, parameters and data are in YAML, everything is on MLflow.

    from everstep.flow import DataSet, FlowTask, main

    class Mnist_A(FlowTask):
        def fetch_data(self): ...
        def preprocessing_train(self): ...
        def build_model(self): ...

    class Mnist_B(Mnist_A):
        pass                      # other values in config/parameters.yaml

    if __name__ == "__main__":
        main()                    # python train.py --task Mnist_B Mnist_B.epoch=1

Nothing here imports Keras: what trains is loaded when a task runs.
"""

from everstep.frontends.flow.program import main
from everstep.frontends.flow.project import FlowProject
from everstep.frontends.flow.running import create_task, run_flow
from everstep.frontends.flow.task import DataSet, FlowTask

__all__ = ["DataSet", "FlowProject", "FlowTask", "create_task", "main", "run_flow"]
