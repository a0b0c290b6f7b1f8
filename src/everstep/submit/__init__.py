"""Submitting a run: its code and config file are copied, and an executor is given a job that trains from the copies.

request.py      what is submitted: a run of a project, or a command; arguments that are refused
snapshot.py     the copies of code and config file: which files, at most 64 MiB; data that changed since
job.py          the program that an executor runs: code that changed since it was submitted, SIGTERM, requeueing on
                Slurm
background.py   `--on background`: a process that survives the terminal
slurm.py        `--on slurm`: the job file's directives (GPU, hours, memory, mail, signal before the end), `sbatch`,
                `squeue`, MAX_JOBS
ray.py          `--on ray`: its dashboard, resources, which variables are passed on, secrets are not
kubernetes.py   `--on kubernetes`: a manifest (JobSet): image, volume, names, restarts
submissions.py  the state of submitted runs: queued, active, ended, killed; "is already submitted"
commands/       `everstep submit`
"""

from typing import TYPE_CHECKING

from everstep.doors import lazy_names

if TYPE_CHECKING:
    from everstep.submit import (
        background,
        kubernetes,
        ray,
        slurm,
        snapshot,
        submissions,
    )
    from everstep.submit.request import (
        SubmitRequest,
        any_command,
        project_run,
    )

__getattr__, __dir__ = lazy_names(__name__, __file__)
