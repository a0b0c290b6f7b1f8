"""Several processes train one run as one does: the same losses, metrics and states; see `check_processes.py`."""

import importlib.util
import json
import os
import pathlib
import socket
import subprocess
import sys

import pytest
from tests.children import forked

pytestmark = pytest.mark.slow

DAILY = ["curve,8", "layers", "tokens"]
HEAVIER = [
    "classes",
    "clipped_in_the_step",
    "gradients_of_gradients",
    "gradients_of_the_backend",
    "noise",
    "not_finite",
    "scaled",
    "accumulated",
    "accumulated_tokens",
    "tokens",
    "own_step",
]
OTHER_NUMBERS = ("layers", "noise")  # each process draws random numbers of its own


def ended(processes, backend, *cases):
    """Returns what each process of a gang has printed for each case."""
    script = pathlib.Path(__file__).with_name("check_processes.py")
    environment = {**os.environ, "KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": "1"}
    if processes > 1:
        with socket.create_server(("127.0.0.1", 0)) as free:
            environment["EVERSTEP_COORDINATOR"] = f"127.0.0.1:{free.getsockname()[1]}"
        environment["EVERSTEP_NUM_PROCESSES"] = str(processes)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    command = [sys.executable, str(script), *cases]
    children = []
    for rank in range(processes):
        own = {"EVERSTEP_PROCESS_ID": str(rank)} if processes > 1 else {}
        popen = subprocess.Popen if rank else forked.Popen  # which has other hashes: see `forked.py`
        children.append(popen(command, env=environment | own, **pipes))
    try:
        printed = [child.communicate(timeout=600) for child in children]
    finally:
        for child in children:
            child.kill()
    for child, (_, errors) in zip(children, printed, strict=True):
        assert child.returncode == 0, errors[-3000:]
    return [[json.loads(line) for line in out.splitlines() if line.startswith("{")] for out, _ in printed]


def check(backend, cases, sizes=(2,)):
    (alone,) = ended(1, backend, *cases)
    for size in sizes:
        first, *others = ended(size, backend, *cases)
        assert all(other == first for other in others), "the processes differ"
        for one, several in zip(alone, first, strict=True):
            assert several["engine"]["replicas"] == size
            assert one["bad_step"] == several["bad_step"]
            if one["case"] not in OTHER_NUMBERS:
                for part in ("logs", "validation"):
                    assert several[part] == pytest.approx(one[part], rel=1e-5, nan_ok=True), one["case"]
                assert several["losses"] == pytest.approx(one["losses"], rel=1e-5, nan_ok=True), one["case"]
    return first


def installed(backend):
    return pytest.mark.skipif(importlib.util.find_spec(backend) is None, reason=f"{backend} is not installed")


# On TensorFlow, replicas in one process are tested daily (`test_replicas.py`): they sum as processes do.
BACKENDS = [
    pytest.param("tensorflow", marks=[installed("tensorflow"), pytest.mark.full]),
    pytest.param("torch", marks=installed("torch")),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes_train_as_one_does(backend):
    check(backend, DAILY)


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_and_four_processes_train_as_one_does(backend):
    ended_with = check(backend, ["curve,200", *HEAVIER], sizes=(2, 4))
    again, *_ = ended(4, backend, "curve,200", *HEAVIER)
    assert again == ended_with, "a second run ended with other bits"


@pytest.mark.full
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_state_is_resumed_on_any_number_of_processes(backend, tmp_path):
    (saved, *_) = ended(2, backend, f"saved,{tmp_path}")
    for size in (1, 2, 4):
        for (resumed,) in ended(size, backend, f"resumed,{tmp_path}"):
            assert resumed["logs"] == pytest.approx(saved[0]["logs"], rel=1e-5)
            assert (resumed["digest"] == saved[0]["digest"]) == (size == 2)
