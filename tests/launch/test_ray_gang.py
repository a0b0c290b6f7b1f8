"""Two processes on a real Ray cluster of this machine, which loses a process, a worker of Ray, and a node."""

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.several.launched import at_step, ended, launch, pids, record, start, wait_for

from everstep.launch.ray_gang import RayCluster, passed_on
from everstep.testing.problems import raises_problem

STEPS = "trainer.train_steps=1500"


def on_ray(test: Any) -> Any:
    """Marks a test that needs a cluster."""
    marks = (
        pytest.mark.full,
        pytest.mark.daily("jax"),
        pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="no Ray (pip install 'ray[default]')"),
        pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"),
    )
    for mark in marks:
        test = mark(test)
    return test


@pytest.fixture
def cluster() -> Iterator[Any]:
    """A head without processors, and three nodes with one each."""
    from ray.cluster_utils import Cluster

    one = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    try:
        for _ in range(3):
            one.add_node(num_cpus=1)
        yield one
    finally:
        one.shutdown()


def on_cluster(cluster: Any, directory: Path, *words: str, size: str = "2", restarts: int = 10) -> Any:
    options = (f"--processes={size}", f"--address={cluster.address}", f"--max-restarts={restarts}", "--backoff=0.1")
    return start(directory, *words, command=("launch", "--on=ray", *options))


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def next_attempt(directory: Path, process: Any, since: float) -> list[int]:
    """Waits until an attempt that began after a time has trained some steps; returns its processes."""
    begun = record(directory)["step"] if (directory / "run.json").exists() else 0
    wait_for(at_step(directory, begun + 60, since), process)
    return pids(directory)


@on_ray
def test_a_gang_survives_the_loss_of_a_process_a_worker_and_a_node(cluster: Any, tmp_path: Path) -> None:
    undisturbed, directory = launch(tmp_path / "undisturbed", 2, STEPS), tmp_path / "run"
    gang = on_cluster(cluster, directory, STEPS)
    killed = next_attempt(directory, gang, 0.0)[1]
    os.kill(killed, signal.SIGKILL)

    wait_for(lambda: killed not in pids(directory), gang)
    first = next_attempt(directory, gang, time.time())[0]
    os.kill(parent(first), signal.SIGKILL)  # the worker of Ray: the process ends with it
    wait_for(lambda: not Path(f"/proc/{first}").exists(), gang)

    wait_for(lambda: first not in pids(directory), gang)
    lost = next_attempt(directory, gang, time.time())[1]
    raylet = parent(parent(lost))
    (node,) = [one for one in cluster.worker_nodes if one.all_processes["raylet"][0].process.pid == raylet]
    cluster.remove_node(node, allow_graceful=False)

    code, text = ended(gang)
    assert code == 0, text
    assert f"rank 1 (pid {killed} on " in text
    assert "was ended by SIGKILL" in text
    assert f"rank 0 (pid {first} on " in text
    assert text.count("was lost with its node or its Ray worker") == 2, text
    assert "step" in text, "the output of the first process is shown"
    code, other = ended(undisturbed)
    assert code == 0, other
    assert [attempt["processes"] for attempt in record(directory)["attempts"]] == [2, 2, 2, 2]
    assert record(directory)["digest"] == record(tmp_path / "undisturbed")["digest"]


@on_ray
def test_stops_and_refusals(cluster: Any, tmp_path: Path) -> None:
    code, text = ended(on_cluster(cluster, tmp_path / "run", size="4"))
    assert (code, text.count("\n")) == (2, 1), text
    assert "--processes: received '4', the cluster has room for 3 processes with 1 CPU each: 4 nodes with " in text

    batches = [f"task.{kind}_data.global_batch_size=36" for kind in ("train", "validation")]
    gang = on_cluster(cluster, tmp_path / "run", STEPS, *batches, size="2..8")
    assert len(next_attempt(tmp_path / "run", gang, 0.0)) == 3, "an elastic gang takes what is there"
    gang.send_signal(signal.SIGTERM)
    code, text = ended(gang)
    assert code == 143, text
    assert record(tmp_path / "run")["status"] == "interrupted"

    code, text = ended(on_cluster(cluster, tmp_path / "odd", "task.train_data.global_batch_size=33"))
    assert code == 2, text
    assert text.count("task.train_data.global_batch_size: received 33") == 1


def test_only_variables_that_a_run_needs_leave_the_launcher() -> None:
    needed = [
        "EVERSTEP_JOIN_SECONDS",
        "JAX_PLATFORMS",
        "KERAS_BACKEND",
        "PYTHONPATH",
        "XLA_FLAGS",
        "NCCL_DEBUG",
        "PATH",
    ]
    trackers = ["MLFLOW_TRACKING_URI", "WANDB_API_KEY", "AWS_ACCESS_KEY_ID", "https_proxy"]
    others = ["GITHUB_TOKEN", "SSH_AUTH_SOCK", "DATABASE_PASSWORD", "HOME", "RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"]
    environment = dict.fromkeys([*needed, *trackers, *others, "EVERSTEP_SUPERVISOR"], "x")
    assert sorted(passed_on(environment)) == sorted([*needed, *trackers])


def test_ray_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with raises_problem(reason=r"--on ray needs the package 'ray\[default\]'", remedy=r"pip install .*\[ray\]'"):
        RayCluster()
