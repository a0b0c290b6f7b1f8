"""A step of Slurm as the supervised command; srun and scancel are small scripts."""

import os
import signal
from pathlib import Path

import pytest

from everstep.errors import UsageError
from everstep.launch.child_gang import ProcessCount
from everstep.launch.slurm_gang import SlurmGang


@pytest.fixture
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    program(tmp_path, "scancel", 'echo "$@" > scancel.arguments')
    return {**os.environ, "SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_CPUS_PER_TASK": "2"}


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_step(tmp_path: Path, environment: dict[str, str]) -> None:
    program(tmp_path, "srun", 'echo "$@" > srun.arguments')
    gang = SlurmGang(["train", "it"], environment, ProcessCount(2, 8))
    assert gang.wait().returncode == 0
    expected = "--kill-on-bad-exit=1 --ntasks=4 --cpus-per-task=2 train it\n"
    assert Path("srun.arguments").read_text() == expected, "an elastic gang takes the tasks of the allocation"
    gang.send(signal.SIGTERM)
    assert Path("scancel.arguments").read_text() == "--signal=TERM 7\n", "srun itself would kill the processes"


@pytest.mark.parametrize(
    ("lines", "returncode", "who"),
    [
        # As Slurm 22.05 prints them: the cause comes first, then what Slurm ended because of it.
        (["task 1: Exited with exit code 2", "task 0: Exited with exit code 143"], 2, "rank 1 (on node7)"),
        (["task 1: Killed", "task 0: Exited with exit code 143"], -9, "rank 1 (on node7)"),
        (["task 3: Segmentation fault (core dumped)", "tasks 0-2: Killed"], -11, "rank 3 (on node7)"),
        (["tasks 0-3: Exited with exit code 143"], 143, "rank 0-3 (on node7)"),
        (["task 0: something new"], 137, "the command"),
    ],
)
def test_the_cause(tmp_path, environment, lines, returncode, who) -> None:
    printed = "\n".join(f"srun: error: node7: {line}" for line in lines)
    program(tmp_path, "srun", f"cat >&2 <<'END'\n{printed}\nsrun: Force Terminated StepId=4.0\nEND\nexit 137")
    status = SlurmGang(["train"], environment, ProcessCount(4, 4)).wait()
    assert (status.returncode, status.who) == (returncode, who)


def test_refusals(tmp_path: Path, environment: dict[str, str]) -> None:
    program(tmp_path, "srun", "true")
    with pytest.raises(UsageError) as raised:
        SlurmGang(["train"], environment, ProcessCount(5, 5))
    assert (raised.value.key, raised.value.received) == ("--processes", "5")
    assert raised.value.reason == "the allocation has 4 tasks"
    with pytest.raises(UsageError) as raised:
        SlurmGang(["train"], dict(os.environ) | {"SLURM_JOB_ID": ""}, ProcessCount(2, 2))
    assert raised.value.key == "--on"
