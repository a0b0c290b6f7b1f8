"""The manifest for Kubernetes, checked against the schema of JobSet, and what is refused before it is printed."""

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from submit_place import Place

from everstep.gang import Coordinates, find_coordinates
from everstep.run import STOPPED_ITSELF

SCHEMA = json.loads(Path(__file__).with_name("jobset_schema.json").read_text())
COMMAND = ["everstep", "train", "mnist/mlp", "--model-dir", "/runs/My_MLP"]
WORDS = ("--image", "registry.example.org/train:1", "--model-dir", "/runs/My_MLP", "--volume", "shared:/runs")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    return Place(tmp_path, monkeypatch)


def submit(place: Place, *options: str, command: list[str] = COMMAND, code: int = 0) -> str:
    return place.everstep("submit", "--on", "kubernetes", *options, "--", *command, code=code)


def manifest(place: Place, *options: str, words: tuple[str, ...] = WORDS) -> Any:
    found = yaml.safe_load(submit(place, *words, "--dry-run", *options))
    jsonschema.validate(found, SCHEMA)
    return found


def pod_of(found: Any) -> Any:
    return found["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]


def test_the_manifest_of_four_processes(place: Place) -> None:
    found = manifest(place, "--processes", "4", "--gpu-type", "NVIDIA-H200", "--n-cpu", "8", "--max-restarts", "3")
    assert found["metadata"]["name"] == "my-mlp"
    assert found["spec"]["failurePolicy"]["maxRestarts"] == 3
    (replicated,) = found["spec"]["replicatedJobs"]
    job = replicated["template"]["spec"]
    assert (job["completionMode"], job["completions"], job["parallelism"], job["backoffLimit"]) == ("Indexed", 4, 4, 0)
    pod = pod_of(found)
    assert (pod["restartPolicy"], pod["terminationGracePeriodSeconds"]) == ("Never", 120)
    assert pod["nodeSelector"] == {"nvidia.com/gpu.product": "NVIDIA-H200"}
    (container,) = pod["containers"]
    assert container["command"] == COMMAND
    assert container["resources"]["limits"] == {"memory": "12288Mi", "nvidia.com/gpu": "1"}
    assert container["volumeMounts"] == [{"name": "runs", "mountPath": "/runs"}]
    assert not place.run.exists()

    environment = {one["name"]: one["value"] for one in container["env"]}
    assert environment["KERAS_BACKEND"] == "jax"
    pod_name = f"my-mlp-{replicated['name']}-0-0.{found['spec']['network']['subdomain']}"
    coordinates = find_coordinates({**environment, "JOB_COMPLETION_INDEX": "3"})  # which an Indexed Job sets
    assert coordinates == Coordinates(f"{pod_name}:8476", 3, 4)


def test_bad_input_and_a_run_that_has_stopped_itself_are_not_restarted(place: Place) -> None:
    found = manifest(place, "--processes", "2")
    (rule,) = found["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [2, STOPPED_ITSELF])
    assert found["spec"]["failurePolicy"]["rules"][0]["action"] == "FailJobSet"


def test_one_process_that_is_preempted_is_started_again_uncounted(place: Place) -> None:
    found = manifest(place)
    _, rule = found["spec"]["replicatedJobs"][0]["template"]["spec"]["podFailurePolicy"]["rules"]
    assert rule == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}


def test_one_process_may_train_in_an_object_store(place: Place) -> None:
    words = ("--image", "train:1", "--model-dir", "s3://bucket/runs/2026 first!", "--gpu-type", "none")
    found = manifest(place, words=words)
    assert found["metadata"]["name"] == "run-2026-first"
    pod = pod_of(found)
    assert "volumes" not in pod
    assert "nvidia.com/gpu" not in pod["containers"][0]["resources"]["limits"]


def test_secrets_stay_here(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:hunter2-Secret@mlflow.example.org")
    assert "hunter2" not in submit(place, *WORDS, "--dry-run")


def test_the_schema_notices_mistakes(place: Place) -> None:
    found = manifest(place, "--processes", "2")
    for path, key in (((), "failurePolicies"), (("replicatedJobs", 0, "template", "spec"), "backofLimit")):
        wrong = copy.deepcopy(found)
        at = wrong["spec"]
        for name in path:
            at = at[name]
        at[key] = 1
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, SCHEMA)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (WORDS, "--on: received 'kubernetes', only prints a manifest: add --dry-run"),
        (("--dry-run", *WORDS[2:]), "--image: is required on Kubernetes"),
        (("--dry-run", *WORDS[:2]), "--model-dir: is required on Kubernetes"),
        (("--dry-run", *WORDS[:4]), "--model-dir: received '/runs/My_MLP', is on no volume"),
        (("--dry-run", *WORDS, "--volume", "x:runs"), "--volume: received 'x:runs', expected CLAIM:PATH"),
        (("--dry-run", *WORDS, "--volume", "x:/data"), "--model-dir: received '/runs/My_MLP', is not on the volume"),
        (("--dry-run", *WORDS, "--processes", "0"), "--processes: received '0', expected a number"),
        (("--dry-run", *WORDS, "--processes", "2..4"), "--processes: received '2..4', expected one number"),
    ],
)
def test_refusals(place: Place, options: tuple[str, ...], message: str) -> None:
    printed = submit(place, *options, code=2)
    assert printed.startswith(f"everstep: error: {message}")
    assert printed.count("\n") == 1


def test_a_run_of_a_project_is_not_in_the_image(place: Place) -> None:
    printed = place.everstep("submit", "baseline", "--on", "kubernetes", "--dry-run", *WORDS, code=2)
    assert "RUN_NAME: received 'baseline', on Kubernetes the image has the files" in printed
