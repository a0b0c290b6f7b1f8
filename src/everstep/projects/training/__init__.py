"""`Training`: the base of a team's training components. Construct it, call `run_train`; a preempted job resumes.

training.py          `Training`: the arguments, a run or its resumption, what a finished job still lacks
building.py          the model of a job
job_files.py         files that tell people how far a job is; nothing reads them back
artifacts.py         the exported model and the history
pipeline_job.py      a job of a pipeline, such as Kubeflow's
own_loop_history.py  the history of a user's own loop
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.projects.training.pipeline_job import (
        JobPaths,
        job_paths,
        run_component,
    )
    from everstep.projects.training.training import Training

__getattr__, __dir__ = lazy_names(__name__, __file__)
