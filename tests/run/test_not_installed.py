"""The package used from its sources, on PYTHONPATH, without being installed."""

import importlib.metadata
import subprocess
import sys

import everstep
from everstep.cli.doctor import extras
from everstep.run.environment import environment

NOT_INSTALLED = """
import importlib.metadata as metadata
find, points = metadata.Distribution.from_name, metadata.entry_points

def from_name(name):
    if name == "everstep":
        raise metadata.PackageNotFoundError(name)
    return find(name)

metadata.Distribution.from_name = from_name
metadata.entry_points = lambda **of: [] if "everstep" in str(of.get("group")) else points(**of)
from everstep.cli.main import main
raise SystemExit(main())
"""


def test_a_run_is_trained_and_saved(tmp_path):
    def call(*words):
        command = [sys.executable, "-c", NOT_INSTALLED, *words]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    few = ["trainer.train_steps=2", "trainer.steps_per_loop=2", "trainer.validation_interval=2"]
    done = call("train", "mnist/local", "--model-dir", "run", "--backend", "jax", "--no-export", *few)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints" / "2").is_dir()
    assert call("--version").stdout == f"everstep {everstep.__version__}\n"


def test_its_version_is_known_and_its_extras_are_not(monkeypatch):
    def from_name(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata.Distribution, "from_name", from_name)
    assert environment()["packages"]["everstep"] == everstep.__version__
    [check] = extras()
    assert (check.ok, "pip install" in check.text) == (False, True)
