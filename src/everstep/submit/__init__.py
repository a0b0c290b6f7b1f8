"""Submitting a run: its code and config file are copied, and an executor is given a job that trains from the copies.

request.py       what is submitted
snapshot.py      the copies
job.py           the program that an executor runs; on Slurm it requeues itself when its time is up
background.py    the executor that needs no queue
slurm.py         Slurm
ray.py           Ray
kubernetes.py    a manifest for Kubernetes
submissions.py   the state of submitted runs
commands/        `everstep submit`
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
