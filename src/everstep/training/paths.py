"""Where the jobs of pipelines are, by convention."""

import os
from typing import NamedTuple

from everstep.errors import UsageError


class JobPaths(NamedTuple):
    """The two places of a job: its run directory, and what it leaves to others."""

    job_dir: str
    artifacts_dir: str


def job_paths(root: str | os.PathLike[str], pipeline: str, job: str, component: str | None = None) -> JobPaths:
    """Returns `<root>/tmp/<pipeline>/<job>` and `<root>/artifacts/<pipeline>/<job>`.

        job_dir, artifacts_dir = job_paths("gs://project", "faces", "job-17", "train")
        # gs://project/tmp/faces/job-17/train, gs://project/artifacts/faces/job-17/train

    Args:
      root: A folder, or a bucket's URL.
      pipeline: The pipeline's name.
      job: The job's id; the same in every attempt.
      component: A part of the pipeline that has a place of its own.

    Raises:
      UsageError: A name is empty, or no name of a folder.
    """
    text = os.fspath(root)
    names = {"pipeline": pipeline, "job": job, **({} if component is None else {"component": component})}
    if not text:
        raise UsageError("root: received '', expected a folder or a URL such as 'gs://bucket'")
    for key, name in names.items():
        if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
            raise UsageError(f"{key}: received {name!r}, expected one name, without '/'")
    base = text.rstrip("/") if not text.endswith("://") else text
    tail = "/".join(names.values())
    return JobPaths(f"{base}/tmp/{tail}", f"{base}/artifacts/{tail}")
