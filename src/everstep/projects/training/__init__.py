"""`Training`: the base of a team's training components. Construct it, call `run_train`; a preempted job resumes.

training.py          the arguments and their defaults; what is compared on a resume (the comparison is in
                     `run/resume_checks.py`), a finished job: what it still lacks; the last short batch is trained
building.py          the model of a job: refuses a compiled one, TPU or not (EVERSTEP_DEVICE_FALLBACK), optimizer,
                     `custom_objects`, input size
job_files.py         `job_meta.json`, `logs/`: files that tell people how far a job is; nothing reads them back
artifacts.py         `artifacts_dir`: the exported model and `history.csv`, whole or not at all
pipeline_job.py      a job of a pipeline, such as Kubeflow's: its folders, exit code, metadata
own_loop_history.py  the history of a user's own loop as Keras's `History`
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
