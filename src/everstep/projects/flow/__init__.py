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

task.py       `FlowTask`, `DataSet`: what a user writes, and what each step does by default
project.py    a project's folder, `train.py`, and which classes are tasks; "there is no such task"
settings.py   the configuration of a flow: `parameters.yaml`, `catalog.yaml`, `optimizer.yaml`: defaults (epoch 1,
              batch size 128, seed 42), inheritance, which file wins, misspelt keys; its experiment on MLflow
unread.py     warns of parameters that a task never reads
running.py    from a task's name to a run: which directory, a run that goes on, `--new`
own_run.py    what surrounds a task's own `run`: steps before it, record and tracking
training.py   the default `run`: splits (`validation_split`), the last short batch is trained, test, what is saved;
              what may change on a resume
recording.py  the record of a run, `log_metrics`, `log_file`, also on MLflow: its names, parameters and tags there
drawing.py    `training.png`: which curves; in a notebook
program.py    the command line of a project's own program: `python train.py --task …`
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.flow.program import main
    from everstep.projects.flow.project import FlowProject
    from everstep.projects.flow.running import (
        create_task,
        execute,
        run_flow,
    )
    from everstep.projects.flow.settings import (
        PARAMETERS,
        compose,
        key_meant,
    )
    from everstep.projects.flow.task import (
        DataSet,
        FlowTask,
        chain_of,
    )
    from everstep.projects.flow.training import FlowConfig

__getattr__, __dir__ = lazy_names(__name__, __file__)
