"""Workers on a cluster: jobs on Ray, or an array of Slurm jobs. They are submitted as `everstep submit` does it."""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from everstep import storage
from everstep.submit import ray, slurm
from everstep.sweeps.executors import worker_command


def submit_ray(
    directory: Path, count: int, longer: Sequence[str], address: str | None, resources: slurm.Resources
) -> list[str]:
    """Submits a Ray job for each worker, with processors and, where the cluster has any, a GPU; returns their ids.

    Raises:
      UsageError: Ray is not installed, no cluster answers, or it refuses.
    """
    resources.check()
    dashboard = ray.dashboard_address(address)
    client = ray.connect(dashboard)
    needs_gpu = resources.gpu_type != "none" and ray.has_gpus(dashboard)
    wanted = {"num_cpus": float(resources.n_cpu)} | ({"num_gpus": 1.0} if needs_gpu else {})
    command = worker_command(directory, longer, "--no-wait")
    names = [f"{_title(directory)}-{number}-{os.urandom(2).hex()}" for number in range(count)]
    return [ray.submit_command(client, command, name, directory, resources=wanted) for name in names]


def slurm_text(directory: Path, count: int, longer: Sequence[str], resources: slurm.Resources) -> str:
    """Returns the job file of an array with a task for each worker."""
    log = str(directory.resolve() / "logs" / "slurm-").replace("%", "%%")
    options = [
        *slurm.resource_options(_title(directory), resources),
        f"array=0-{count - 1}",
        f'output="{log}%A_%a.log"',
        "open-mode=append",
        "requeue",
        f"signal=B:USR1@{slurm.SECONDS_TO_SAVE}",
    ]
    command = shlex.join(worker_command(directory, longer, "--no-wait"))
    return "\n".join(["#!/bin/bash", *(f"#SBATCH --{option}" for option in options), "", f"exec {command}", ""])


def submit_slurm(directory: Path, count: int, longer: Sequence[str], resources: slurm.Resources) -> str:
    """Writes the job file and submits it; returns the array's id.

    Raises:
      UsageError: There is no Slurm, or it refuses; has its message.
    """
    resources.check()
    slurm.require_slurm()
    (directory / "logs").mkdir(exist_ok=True)
    path = directory / f"{_title(directory)}.job"
    storage.write_text(path, slurm_text(directory, count, longer, resources))
    return slurm.submit_file(path)


def _title(directory: Path) -> str:
    return re.sub(r"[^\w.-]+", "_", directory.name)
