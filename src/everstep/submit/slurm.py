"""The executor Slurm: a job file for `sbatch`, and the queue as `squeue` prints it.

A run that is not done when its time is up is requeued by the job itself: `job.py`, `_requeue`.
"""

import dataclasses
import getpass
import math
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from everstep import storage
from everstep.errors import UsageError
from everstep.submit.request import SubmitRequest

SECONDS_TO_SAVE = 120
"""How long before the end of its time a job is told to save."""

_SECONDS_TO_ANSWER = 60.0
_WORD = re.compile(r"[\w.@+-]+")


@dataclasses.dataclass(frozen=True)
class Resources:
    """What a job requests of the cluster.

    Attributes:
      gpu_type: The cluster's name for the GPU, such as `v100`; `any` or `none`.
      hours: The time limit of one job; an unfinished run is requeued and resumes.
      mem: Memory of each process, in MiB.
      n_cpu: Processors of each process.
      email: Who gets mail when the job begins, ends or fails; empty for nobody.
      processes: How many processes train the run together.
    """

    gpu_type: str = "any"
    hours: float = 2.0
    mem: int = 12288
    n_cpu: int = 1
    email: str = ""
    processes: int = 1

    def check(self) -> None:
        """Checks the values before Slurm sees them.

        Raises:
          UsageError: Slurm would not accept one of them.
        """
        if not (math.isfinite(self.hours) and self.hours > 0):
            raise UsageError("must be more than 0", key="--hours", received=self.hours)
        for option, count in (("--mem", self.mem), ("--n-cpu", self.n_cpu)):
            if count < 1:
                raise UsageError("must be at least 1", key=option, received=count)
        if not _WORD.fullmatch(self.gpu_type):
            raise UsageError("expected a name such as v100, any or none", key="--gpu-type", received=self.gpu_type)
        if self.email and not (_WORD.fullmatch(self.email) and "@" in self.email):
            raise UsageError("is not an email address", key="--email", received=self.email)


def job_text(request: SubmitRequest, snapshot: Path, resources: Resources, max_restarts: int) -> str:
    """Returns the content of the job file."""
    lines = [f"#SBATCH --{option}" for option in _options(request, resources)]
    of_gang = ["--on", "slurm", "--processes", str(resources.processes)] if resources.processes > 1 else []
    command = shlex.join(request.job_command(snapshot, max_restarts, *of_gang))
    return "\n".join(["#!/bin/bash", *lines, "", f"exec {command}", ""])


def resource_options(title: str, resources: Resources) -> Iterator[str]:
    """Yields the options of a job file that name the job and request resources."""
    yield f"job-name={title}"
    several = resources.processes > 1
    if several:
        yield f"ntasks={resources.processes}"
    if resources.gpu_type != "none":
        kind = "" if resources.gpu_type == "any" else f"{resources.gpu_type}:"
        yield f"gpus-per-task={kind}1" if several else f"gres=gpu:{kind}1"
    minutes = max(1, round(resources.hours * 60))
    yield f"time={minutes // 60:02d}:{minutes % 60:02d}:00"
    # Slurm knows the memory of a node and of a processor, not of a task.
    yield f"mem-per-cpu={math.ceil(resources.mem / resources.n_cpu)}" if several else f"mem={resources.mem}"
    yield f"cpus-per-task={resources.n_cpu}"
    if resources.email:
        yield f"mail-user={resources.email}"
        yield "mail-type=ALL"


def _options(request: SubmitRequest, resources: Resources) -> Iterator[str]:
    yield from resource_options(request.title, resources)
    log = str(request.directory / "log-").replace("%", "%%")
    yield f'output="{log}%j.out"'
    yield f'error="{log}%j.err"'
    yield "open-mode=append"
    yield "requeue"
    yield f"signal=B:USR1@{SECONDS_TO_SAVE}"


def job_file(request: SubmitRequest) -> Path:
    """Returns the path of the job file."""
    return request.directory / f"{request.title}.job"


def require_slurm() -> None:
    """Checks that Slurm can be used, and that the user may submit one more job: `MAX_JOBS`, by default 10.

    Raises:
      UsageError: There is no `sbatch` on this machine, the user has too many jobs, or Slurm does not answer.
    """
    if shutil.which("sbatch") is None:
        raise UsageError(
            "there is no sbatch on this machine",
            key="--on",
            received="slurm",
            remedy="submit from a login node of the cluster, or print the job file with --dry-run",
        )
    limit = os.environ.get("MAX_JOBS", "10")
    if not limit.isdecimal():
        raise UsageError("must be a whole number", key="MAX_JOBS", received=limit)
    count = len(queued_jobs())
    if count >= int(limit):
        raise UsageError(
            f"you have {count} jobs on the cluster",
            key="MAX_JOBS",
            received=int(limit),
            remedy="wait for one, or raise it",
        )


def submit(request: SubmitRequest, snapshot: Path, resources: Resources, max_restarts: int) -> str:
    """Writes the job file and submits it; returns the job's number.

    Raises:
      UsageError: Slurm refuses it; has Slurm's message.
    """
    path = job_file(request)
    storage.write_text(path, job_text(request, snapshot, resources, max_restarts))
    return submit_file(path)


def submit_file(path: Path) -> str:
    """Submits a job file; returns the job's number.

    Raises:
      UsageError: Slurm refuses it; has Slurm's message.
    """
    printed = _output_of("sbatch", "--parsable", str(path))
    return printed.strip().splitlines()[-1].partition(";")[0]


def queued_jobs() -> dict[str, str]:
    """Returns the user's jobs that are queued or running, with their states: `{"123": "PENDING"}`.

    Raises:
      UsageError: There is no Slurm, or it does not answer.
    """
    lines = _output_of("squeue", "--noheader", "--user", getpass.getuser(), "--format", "%i %T").splitlines()
    return {words[0]: words[1] for line in lines if len(words := line.split()) == 2}


def _output_of(*command: str) -> str:
    """Runs one of Slurm's programs; returns what it prints.

    Raises:
      UsageError: It is not installed, does not answer, or fails; has its message.
    """
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS_TO_ANSWER)
    except (OSError, subprocess.SubprocessError) as error:
        raise UsageError(f"{command[0]} does not answer: {error}", key="--on", received="slurm") from error
    if done.returncode != 0:
        message = " ".join(done.stderr.split()) or f"exit code {done.returncode}"
        raise UsageError(f"{command[0]} refused: {message}", key="--on", received="slurm")
    return done.stdout
