"""The manifest of a run on Kubernetes: a JobSet, whose pods start, fail and restart together, as a gang does.

Nothing is applied here. `kubectl apply -f -` does that, in a cluster that has the JobSet controller
(https://jobset.sigs.k8s.io). The image has the code: nothing is copied.
"""

import os
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

import yaml

from everstep import gang, redaction
from everstep.errors import UsageError
from everstep.run import STOPPED_ITSELF
from everstep.submit.slurm import SECONDS_TO_SAVE, Resources

_PORT = 8476
_JOB, _CONTAINER, _VOLUME = "gang", "train", "runs"
_FINAL = [2, STOPPED_ITSELF]
"""Bad input, and a run that a hook has stopped: started again at once, neither would do what was wanted."""

_NAME_LENGTH = 40
"""Kubernetes allows 63, of which a pod's name needs some for its numbers."""

_PASSED_ON = ("KERAS_BACKEND", "MLFLOW_TRACKING_URI")
"""Variables of this process that the run needs. Others, such as paths, have no meaning in the image."""


def manifest(
    command: Sequence[str],
    model_dir: str | None,
    image: str | None,
    volume: str | None,
    resources: Resources,
    max_restarts: int,
) -> str:
    """Returns the manifest of a command that trains in `model_dir`.

    Args:
      command: Program and arguments, as they are in the image.
      model_dir: The run directory: a path on the volume; for one process, it may be a URL of an object store.
      image: The container image.
      volume: A claim of a volume that all pods may write to, and where it is mounted: `CLAIM:PATH`.
      resources: What each process gets.
      max_restarts: How often all pods may be started again.

    Raises:
      UsageError: Something is missing, or the pods would not share the run directory.
    """
    if not image:
        remedy = "name an image that has everstep and the code"
        raise UsageError("is required on Kubernetes", key="--image", remedy=remedy)
    if not model_dir:
        raise UsageError("is required on Kubernetes", key="--model-dir", remedy="name a path on the --volume")
    claim, path = _mount(volume, model_dir, resources.processes)
    name = _name(model_dir)
    container: dict[str, Any] = {
        "name": _CONTAINER,
        "image": image,
        "command": list(command),
        "env": [{"name": key, "value": value} for key, value in _environment(name, resources.processes).items()],
        "resources": _resources(resources),
    }
    pod: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": SECONDS_TO_SAVE,
        "containers": [container],
    }
    if claim:
        container["volumeMounts"] = [{"name": _VOLUME, "mountPath": path}]
        pod["volumes"] = [{"name": _VOLUME, "persistentVolumeClaim": {"claimName": claim}}]
    if resources.gpu_type not in ("any", "none"):
        pod["nodeSelector"] = {"nvidia.com/gpu.product": resources.gpu_type}
    return str(yaml.safe_dump(_job_set(name, pod, resources.processes, max_restarts), sort_keys=False))


def _job_set(name: str, pod: dict[str, Any], processes: int, max_restarts: int) -> dict[str, Any]:
    final = {"containerName": _CONTAINER, "operator": "In", "values": _FINAL}
    rules: list[dict[str, Any]] = [{"action": "FailJob", "onExitCodes": final}]
    if processes == 1:  # its node is taken away: the pod gets another one, which is no restart that counts
        rules.append({"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]})
    job = {
        "completionMode": "Indexed",  # gives each pod its number in JOB_COMPLETION_INDEX
        "completions": processes,
        "parallelism": processes,
        "backoffLimit": 0,  # a pod that fails is not replaced alone
        "podFailurePolicy": {"rules": rules},
        "template": {"spec": pod},
    }
    no_restart = {"name": "final-exit-code", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {
            "failurePolicy": {"maxRestarts": max_restarts, "rules": [no_restart]},
            "network": {"enableDNSHostnames": True, "subdomain": name, "publishNotReadyAddresses": True},
            "replicatedJobs": [{"name": _JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _environment(name: str, processes: int) -> dict[str, str]:
    passed_on = {key: os.environ[key] for key in _PASSED_ON if key in os.environ}
    return {
        gang.COORDINATOR: f"{name}-{_JOB}-0-0.{name}:{_PORT}",
        gang.NUM_PROCESSES: str(processes),
        **{key: value for key, value in passed_on.items() if redaction.text(value) == value},
    }


def _resources(resources: Resources) -> dict[str, Any]:
    memory = f"{resources.mem}Mi"
    limits = {"memory": memory}
    if resources.gpu_type != "none":
        limits["nvidia.com/gpu"] = "1"
    return {"requests": {"cpu": str(resources.n_cpu), "memory": memory}, "limits": limits}


def _mount(volume: str | None, model_dir: str, processes: int) -> tuple[str, str]:
    """Returns the claim and the path of the volume; empty without one."""
    in_store = "://" in model_dir and processes == 1
    if volume is None and in_store:
        return "", ""
    if volume is None:
        raise UsageError(
            "is on no volume: the pods would not share it, and it would be lost with them",
            key="--model-dir",
            received=model_dir,
            remedy="add --volume CLAIM:PATH, and choose a directory below PATH",
        )
    claim, _, path = volume.partition(":")
    if not re.fullmatch(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?", claim) or not path.startswith("/"):
        raise UsageError("expected CLAIM:PATH, as in runs:/runs", key="--volume", received=volume)
    if not in_store and not PurePosixPath(model_dir).is_relative_to(path):
        raise UsageError(
            f"is not on the volume, which is mounted at {path}",
            key="--model-dir",
            received=model_dir,
            remedy=f"choose a directory below {path}",
        )
    return claim, path


def _name(model_dir: str) -> str:
    """Returns the last part of the run directory as Kubernetes accepts it for a service: `runs/My_MLP` is `my-mlp`."""
    words = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(model_dir).name.lower()).strip("-")
    return (words if words[:1].isalpha() else f"run-{words}")[:_NAME_LENGTH].strip("-")
