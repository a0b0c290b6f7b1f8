import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("tensorflow")


def test_two_replicas_train_as_one_does():
    script = pathlib.Path(__file__).with_name("check_replicas.py")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert result.stdout.count("two replicas train as one does") == 2


def test_two_devices_of_a_mesh_train_as_one_does():
    pytest.importorskip("jax")
    script = pathlib.Path(__file__).with_name("check_mesh.py")
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-3000:]
    assert "two devices train as one does, and resume" in result.stdout
