"""Processes that are killed: the run ends in the bits of one that was not, also if what was compiled is deleted."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import keras
import pytest
from tests.engine.exact_run import MODELS, STEPS

from everstep.engine import exactness
from everstep.run.record import read

pytestmark = [
    pytest.mark.backend,
    pytest.mark.gpu,
    pytest.mark.full,  # every day: test_certified.py, and tests/reliability
    pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="bits on a GPU are those of JAX and PyTorch"),
]

SCRIPT = Path(__file__).with_name("exact_run.py")
SUSPECT = ("may differ", "may end with other bits", "cannot be kept", "cannot read its choices")


def output_of_training(name: str, directory: Path, killed_at: int = 0) -> str:
    """Trains in a new process, which may be killed after a step; returns what it printed."""
    environment = {**os.environ, "KERAS_BACKEND": keras.backend.backend()}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # what is compiled is kept with the run
    command = [sys.executable, str(SCRIPT), name, str(directory), str(killed_at)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == (-signal.SIGKILL if killed_at else 0), done.stderr
    return done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_killed_processes_end_in_the_bits_of_one(name, tmp_path):
    run = tmp_path / "killed"
    said = output_of_training(name, tmp_path / "whole")
    said += output_of_training(name, run, killed_at=STEPS + 5)
    said += output_of_training(name, run, killed_at=2 * STEPS + 3)
    shutil.rmtree(run / ".compiled", ignore_errors=True)
    said += output_of_training(name, run)
    whole, found = read(tmp_path / "whole"), read(run)
    assert found["digest"] == whole["digest"]
    assert len(found["attempts"]) == 3
    assert not [line for line in said.splitlines() if any(text in line for text in SUSPECT)]
    if found["environment"]["engine"]["device"] == "gpu":
        assert found["exactness"] == whole["exactness"]
        assert found["exactness"]["level"] != exactness.NONE
