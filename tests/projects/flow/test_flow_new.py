"""The sample as `everstep new` makes it, in processes of its own: its tests, and a wrong name."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import everstep
from everstep.cli.main import main

pytestmark = pytest.mark.slow


@pytest.fixture
def demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(("new", "sample")) == 0
    return tmp_path / "sample"


def python(folder, *words):
    variables = {**os.environ, "PYTHONPATH": str(Path(everstep.__file__).parent.parent)}
    variables.pop("MLFLOW_TRACKING_URI", None)
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, timeout=600, check=False)


def test_a_wrong_task_is_told_before_keras_is_loaded(demo):
    done = python(demo, "-X", "importtime", demo / "train.py", "--task", "Mnist_C")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert done.returncode == 2
    assert "did you mean 'Mnist_B'" in done.stderr
    assert "everstep.flow" in imported
    assert not imported & {"keras", "tensorflow", "jax", "torch"}


@pytest.mark.full
@pytest.mark.backend
@pytest.mark.daily("torch")
def test_its_own_tests_pass_whatever_this_machine_sets(demo):
    (demo / "config" / "local" / "parameters.yaml").write_text("Mnist_B: {model_name: small_model, epoch: 7}\n")
    path = f"import sys; sys.path.insert(0, {str(demo.parent)!r})"
    (demo / "conftest.py").write_text(path + "\n")  # as if it were installed
    done = python(demo, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "variant")
    assert "1 passed" in done.stdout, done.stdout + done.stderr
