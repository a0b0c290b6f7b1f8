"""Slurm: a job file, and `sbatch`."""

import dataclasses
import math
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.launch.submit import squeue
from everstep.launch.submit.background import job_command
from everstep.launch.submit.request import Request

_SECONDS_TO_SAVE = 120
_WORD = re.compile(r"[\w.@+-]+")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a job asks of the cluster.

    Attributes:
      gpu_type: The cluster's name of the GPU: `v100`; `any` for whichever, `none` for none.
      hours: How long it may run at a time; what is not done by then goes on in another turn.
      mem: Memory, in MiB.
      n_cpu: Processors.
      email: Who is told when it begins, ends or fails; empty for nobody.
    """

    gpu_type: str = "any"
    hours: float = 2.0
    mem: int = 12288
    n_cpu: int = 1
    email: str = ""

    def check(self) -> None:
        """Refuses what Slurm would not understand.

        Raises:
          UsageError: Names the option and the value received.
        """
        if not (math.isfinite(self.hours) and self.hours > 0):
            raise UsageError(f"--hours: received {self.hours}, must be more than 0")
        for name, count in (("--mem", self.mem), ("--n-cpu", self.n_cpu)):
            if count < 1:
                raise UsageError(f"{name}: received {count}, must be at least 1")
        if not _WORD.fullmatch(self.gpu_type):
            raise UsageError(f"--gpu-type: received {self.gpu_type!r}; a name such as v100, or any, or none")
        if self.email and not (_WORD.fullmatch(self.email) and "@" in self.email):
            raise UsageError(f"--email: received {self.email!r}, which is no address")


def job_text(request: Request, snapshot: Path, resources: Resources, max_restarts: int) -> str:
    """Returns the job file."""
    lines = [f"#SBATCH --{option}" for option in _options(request, resources)]
    command = shlex.join(job_command(request, snapshot, max_restarts))
    return "\n".join(["#!/bin/bash", *lines, "", f"exec {command}", ""])


def _options(request: Request, resources: Resources) -> Iterator[str]:
    yield f"job-name={request.title}"
    if resources.gpu_type != "none":
        yield "gres=gpu:1" if resources.gpu_type == "any" else f"gres=gpu:{resources.gpu_type}:1"
    yield f"time={_clock(resources.hours)}"
    yield f"mem={resources.mem}"
    yield f"cpus-per-task={resources.n_cpu}"
    if resources.email:
        yield f"mail-user={resources.email}"
        yield "mail-type=ALL"
    log = str(request.directory / "log-").replace("%", "%%")
    yield f'output="{log}%j.out"'
    yield f'error="{log}%j.err"'
    yield "open-mode=append"
    yield "requeue"
    yield f"signal=B:USR1@{_SECONDS_TO_SAVE}"


def job_file(request: Request) -> Path:
    """Returns where the job file is written."""
    return request.directory / f"{request.title}.job"


def require() -> None:
    """Refuses where there is no Slurm.

    Raises:
      UsageError: There is no `sbatch` on this machine.
    """
    if shutil.which("sbatch") is None:
        raise UsageError(
            "--engine slurm: there is no sbatch on this machine: submit from a login node of the cluster, "
            "or see the job file with --dry-run"
        )


def require_room() -> None:
    """Refuses where the user has as many jobs as he may have: `MAX_JOBS`, 10 unless it is set.

    Raises:
      UsageError: There are too many, or nobody can tell.
    """
    text = os.environ.get("MAX_JOBS", "10")
    if not text.isdecimal():
        raise UsageError(f"MAX_JOBS: received {text!r}, must be a whole number")
    count = len(squeue.jobs())
    if count >= int(text):
        raise UsageError(f"you have {count} jobs on the cluster, and MAX_JOBS is {text}: wait for one, or set MAX_JOBS")


def submit(request: Request, snapshot: Path, resources: Resources, max_restarts: int) -> str:
    """Writes the job file and hands it to Slurm; returns the job's number.

    Raises:
      UsageError: Slurm does not take it; says why in Slurm's words.
    """
    path = job_file(request)
    storage.write_text(path, job_text(request, snapshot, resources, max_restarts))
    said = squeue.asked("sbatch", "--parsable", str(path))
    return said.strip().splitlines()[-1].partition(";")[0]


def _clock(hours: float) -> str:
    minutes = max(1, round(hours * 60))
    return f"{minutes // 60:02d}:{minutes % 60:02d}:00"
