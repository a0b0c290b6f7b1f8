"""Runs of projects, repeated from a fresh clone: flows, components, programs."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import keras
import pytest

from everstep.reproduce.reproducing import compare_runs, reproduce
from everstep.testing.problems import raises_problem

pytestmark = [pytest.mark.backend, pytest.mark.full, pytest.mark.timeout(1800)]


def everstep(folder, *words):
    settings = {
        name: value for name, value in os.environ.items() if name not in ("KERAS_BACKEND", "MLFLOW_TRACKING_URI")
    }
    command = [sys.executable, "-m", "everstep", *words]
    done = subprocess.run(command, cwd=folder, env=settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stdout


def git(folder, *words):
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def new_project(folder, *words):
    everstep(folder, "new", "demo", *words)
    git(folder / "demo", "init", "-q")
    git(folder / "demo", "add", ".")
    git(folder / "demo", "commit", "-qm", "first")
    return folder / "demo"


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "index"}


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_a_flow_in_a_fresh_clone(tmp_path):
    demo = new_project(tmp_path)
    values = ["Mnist_B.epoch=2", "Mnist_B.samples=1000", f"--backend={keras.backend.backend()}"]
    run = json.loads(everstep(demo, "flow", "Mnist_B", *values, "--json"))["run"]
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(demo), str(clone))
    shutil.copytree(run, clone / "runs" / "first")
    demo.rename(tmp_path / "moved")
    parameters = clone / "config" / "parameters.yaml"
    parameters.write_text(parameters.read_text().replace("epoch: 5", "epoch: 7"))
    before = contents(clone)
    found = reproduce(clone / "runs" / "first", show=False)
    assert found.identical, found.lines()
    assert [cause.kind for cause in found.others] == ["code"]
    assert found.outcome.weights == 16
    assert contents(clone) == before
    flip(clone / "data" / "raw" / "mnist.npz")
    found = reproduce(clone / "runs" / "first", steps=8, show=False)
    assert str(found.cause) == "data: mnist.raw has other content"
    (clone / "data" / "raw" / "mnist.npz").unlink()
    with raises_problem(reason=r"cannot be repeated.*data: mnist.raw is gone: .*mnist\.npz"):
        reproduce(clone / "runs" / "first", show=False)


def test_a_run_of_components(tmp_path):
    demo = new_project(tmp_path, "--template=components")
    path = demo / "runs" / "baseline" / "config.yaml"
    path.write_text(path.read_text().replace("epochs: 5", "epochs: 2").replace("samples: 10000", "samples: 1000"))
    everstep(demo, "run", "baseline", f"--backend={keras.backend.backend()}")
    found = reproduce(demo / "runs" / "baseline", steps=8, show=False)
    assert found.identical, found.lines()
    assert found.outcome.weights == 8


def test_a_program_is_run_by_hand_and_compared(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    for name, seed in (("first", 1), ("second", 1), ("third", 2)):
        subprocess.run([sys.executable, str(program), name, str(seed)], cwd=tmp_path, check=True, capture_output=True)
    with contextlib.chdir(tmp_path):
        assert compare_runs("first", "second").identical
        found = compare_runs("first", "third")
    assert str(found.cause) == "seed: runtime.seed was 1, now it is 2"


PROGRAM = """
import sys

import keras
import numpy as np

import everstep

x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
keras.utils.set_random_seed(int(sys.argv[2]))
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("adam", "mse")
everstep.fit(model, (x, x.sum(axis=1)), epochs=2, model_dir=sys.argv[1], verbose=False, seed=int(sys.argv[2]))
"""
