"""Bad input of several processes: one line says what is wrong, exit code 2, nothing is left running or on disk.

The table in `docs/how-to/several-machines.md` has the same lines. What is tested daily, in `tests/gang` and
`tests/run/test_agreement.py`, needs no training.
"""

import os
import random
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from tests.gang.processes import free_port
from tests.several.launched import HERE, WORDS, by_hand, ended, launch, start

pytestmark = [pytest.mark.backend, pytest.mark.daily("jax"), pytest.mark.full, pytest.mark.timeout(1200)]

LAYOUT = "runtime.mesh={data: 1, model: 2}"
TWO_DEVICES = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}


def check(code: int, text: str, *expected: str) -> None:
    """The processes ended as they should: one line, with all of this in it."""
    assert code == 2, text
    (line,) = text.splitlines()
    assert line.startswith("everstep: error: "), text
    assert all(part in line for part in expected), text


def check_refused(process, directory: Path, *expected: str) -> None:
    code, text = ended(process, 900)
    check(code, text, *expected)
    assert not (directory / "checkpoints").exists()
    assert not (directory / "run.json").exists()


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [
        (
            ["task.units=${oc.decode:3${oc.env:EVERSTEP_PROCESS_ID}}"],
            {},
            ["the configuration differs between the processes: 'units: 30' and 'units: 31', on rank 0 and rank 1 (pid"],
        ),
        (
            [],
            {"GANG_OTHER_DATA": "1"},
            ["task.train_data: the data differs between the processes: ", " on rank 0, but ", " on rank 1 (pid "],
        ),
        (
            ["task.train_data.global_batch_size=33"],
            {},
            ["task.train_data.global_batch_size: received 33, must be a multiple of 2", "set it to 32"],
        ),
        (
            ["runtime.mesh={model: 2}"],
            {},
            ["runtime.mesh: received {'model': 2}, has no axis 'data'"],
        ),
        (
            ["runtime.mesh={data: 3}"],
            {},
            ["runtime.mesh: received {'data': 3}, ", "2 devices"],
        ),
        (
            ["runtime.mesh={data: 2}", "runtime.sharding={kernel: [null, modle]}"],
            {},
            ["runtime.sharding", "'kernel' names the axis 'modle', which the mesh does not have"],
        ),
    ],
    ids=["config", "data", "batch", "no data axis", "devices", "unknown axis"],
)
def test_launched_processes(words, environment, expected, tmp_path):
    check_refused(launch(tmp_path / "run", 2, *words, environment=environment), tmp_path / "run", *expected)


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize(
    ("layout", "expected"),
    [
        ("{nothing: [null, model]}", ["matches no variable of the model or the task", "their keys are model/"]),
        ("{kernel: [null, model], dense/kernel: [model]}", ["which 'kernel' matches, too"]),
    ],
    ids=["nothing", "twice"],
)
def test_layouts(layout, expected, processes, tmp_path):
    words = (LAYOUT, f"runtime.sharding={layout}")
    if processes == 1:
        process = start(tmp_path / "run", *words, environment=TWO_DEVICES)
    else:
        process = launch(tmp_path / "run", 2, *words)
    check_refused(process, tmp_path / "run", "runtime.sharding", *expected)


@pytest.mark.parametrize(
    ("words", "expected", "slurm"),
    [
        (["task.unit=3"], "task.unit: received 3, unknown key: did you mean 'units'?", False),
        (["task.train_data.global_batch_size=32"], "task.train_data.global_batch_size: received 32", False),
        (["task.unit=3"], "task.unit: received 3", True),
        (["runtime.mesh={model: 2}"], "runtime.mesh: received", True),
    ],
    ids=["before they meet", "afterwards", "before they meet, srun", "afterwards, srun"],
)
def test_of_processes_that_are_started_one_by_one_the_first_prints_it(words, expected, slurm, tmp_path):
    port = random.randrange(10_000, 20_000) if slurm else free_port()
    first, *others = [ended(one, 900) for one in by_hand(tmp_path / "run", port, 3, *words, slurm=slurm)]
    check(*first, expected)
    assert others == [(2, ""), (2, "")]
    assert not (tmp_path / "run" / "run.json").exists()


def test_what_one_process_alone_refuses_is_printed_by_the_first(tmp_path):
    """The others do not wait for it until their time is up."""
    port = free_port()
    first = by_hand(tmp_path / "run", port, 3, ranks=[0, 2])
    (other,) = by_hand(tmp_path / "run", port, 3, "task.unit=3", ranks=[1])
    check(*ended(first[0], 900), "task.unit", "(on rank 1 (pid ")
    assert [ended(one, 900) for one in (first[1], other)] == [(2, ""), (2, "")]


def test_other_code(tmp_path):
    """Each process starts in its own copy of the code, and one of them differs."""
    for rank in ("0", "1"):
        (tmp_path / rank).mkdir()
        shutil.copy(HERE / "gang_experiment.py", tmp_path / rank)
    with open(tmp_path / "1" / "gang_experiment.py", "a") as file:
        file.write("# a change\n")
    train = f"{sys.executable} -m everstep train {' '.join(WORDS)} --model-dir={tmp_path / 'run'}"
    program = ["sh", "-c", f"cd {tmp_path}/$EVERSTEP_PROCESS_ID && PYTHONPATH=$PWD:$PYTHONPATH exec {train}"]
    done = subprocess.run(
        [sys.executable, "-m", "everstep", "launch", "--processes=2", "--max-restarts=0", "--", *program],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=900,
        check=False,
        env={**os.environ, "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)},
    )
    check(done.returncode, done.stdout, "the code differs between the processes: {", " on rank 0, but {", "rank 1 (pid")


def test_a_taken_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        first, other = [ended(one, 900) for one in by_hand(tmp_path / "run", port, 2, seconds=5)]
    wrong = f"EVERSTEP_COORDINATOR: received '127.0.0.1:{port}', rank 0 cannot use this port on"
    check(*first, wrong, "Address already in use: choose a port that is free")
    check(*other, "rank 0 did not answer within 5 s")


def test_a_rank_that_never_comes(tmp_path):
    first, other = by_hand(tmp_path / "run", free_port(), 3, ranks=[0, 2], seconds=15)
    check_refused(first, tmp_path / "run", "rank 1 of 3 processes did not come within 15 s")
    assert ended(other, 900) == (2, "")


def test_the_first_rank_never_comes(tmp_path):
    (other,) = by_hand(tmp_path / "run", free_port(), 2, ranks=[1], seconds=5)
    check_refused(other, tmp_path / "run", "rank 0 did not answer within 5 s: see its log")
