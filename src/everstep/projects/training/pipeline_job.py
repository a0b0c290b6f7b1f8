"""A job of a pipeline, such as Kubeflow's: its two places, its exit code, and the files that the pipeline shows.

This imports no Keras.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from everstep.errors import TrainingError, UsageError
from everstep.run import Interrupted, exit_code


class JobPaths(NamedTuple):
    """The two places of a job: its run directory, and its artifacts."""

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
      component: The component of the pipeline; None for one that uses the whole job.

    Raises:
      UsageError: A name is empty, or cannot be the name of a folder.
    """
    text = os.fspath(root)
    names = {"pipeline": pipeline, "job": job, **({} if component is None else {"component": component})}
    if not text:
        raise UsageError("expected a folder or a URL such as 'gs://bucket'", key="root", received=text)
    for key, name in names.items():
        if not isinstance(name, str) or not name or "/" in name or name in (".", ".."):
            raise UsageError("expected one name, without '/'", key=key, received=name)
    base = text.rstrip("/") if not text.endswith("://") else text
    tail = "/".join(names.values())
    return JobPaths(f"{base}/tmp/{tail}", f"{base}/artifacts/{tail}")


def run_component(main: Callable[[], Any]) -> int:
    """Calls `main` and returns the exit code of a component's program.

        if __name__ == "__main__":
            raise SystemExit(run_component(main))

    | 0 | done |
    | 1 | failed; what the job had is kept, and a retry resumes from there |
    | 2 | bad input, one line on standard error: a retry would not help |
    | 3 | stopped by a hook of its own; the state is saved |
    | 130, 143 | stopped by SIGINT or SIGTERM; the state is saved: start it again |

    Any other error is a bug, and shows its traceback (exit code 1).
    """
    try:
        main()
    except (UsageError, TrainingError) as error:
        kind = type(error)
        return exit_code(kind(" ".join(str(error).split("\n"))).with_traceback(error.__traceback__))
    except (KeyboardInterrupt, Interrupted) as error:
        return exit_code(error)
    return 0


def kubeflow_ui_metadata(logs: str) -> dict[str, Any]:
    """Returns the content of Kubeflow's `mlpipeline-ui-metadata.json`: where TensorBoard finds its events."""
    return {"outputs": [{"type": "tensorboard", "source": logs}]}


def kubeflow_metrics(history: Mapping[str, Sequence[Any]]) -> dict[str, Any]:
    """Returns the content of Kubeflow's `mlpipeline-metrics.json`: the last value of each metric, where it is finite.

    An accuracy is shown in percent.
    """
    metrics = []
    for name, value in {name: float(values[-1]) for name, values in history.items() if len(values)}.items():
        if math.isfinite(value):
            is_share = "acc" in name and 0 <= value <= 1
            metrics.append({"name": name, "numberValue": value, "format": "PERCENTAGE" if is_share else "RAW"})
    return {"metrics": metrics}
