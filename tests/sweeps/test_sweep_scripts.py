"""Sweeps over a script: by real processes, one of which is killed."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SCRIPT = """
import argparse
import os
import time

import keras
import numpy as np

import everstep

parser = argparse.ArgumentParser()
parser.add_argument("--units", type=int)
parser.add_argument("--batch-size", type=int, default=32)
arguments = parser.parse_args()


class Slowly(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(float(os.environ.get("PAUSE", "0")))


x = np.random.default_rng(0).normal(size=(64, 2)).astype("float32")
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(arguments.units), keras.layers.Dense(1)])
model.compile("sgd", "mse")
everstep.fit(
    model, x, x.sum(axis=1), arguments.batch_size, epochs=20, verbose=0, callbacks=[Slowly()],
    validation_data=(x, x.sum(axis=1)), model_dir="runs/mine",
)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    (tmp_path / "train.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def start(*command, **variables):
    environment = {**os.environ, "KERAS_BACKEND": "jax", **variables}
    return subprocess.Popen([sys.executable, *command], env=environment, stderr=subprocess.PIPE, text=True)


def record(directory):
    return json.loads((Path(directory) / "run.json").read_text())


def test_a_killed_trial_resumes_in_its_own_directory(place):
    words = ["-m", "everstep", "sweep", "train.py", "units=2,3", "batch-size=16", "--sweep-dir", "sweep"]
    sweep = start(*words, PAUSE="0.3")
    kill_in_training(place / "sweep" / "trials" / "0", sweep)
    _, error = sweep.communicate(timeout=600)
    assert sweep.returncode == 0, error
    first = record("sweep/trials/0")
    assert [attempt["reason"] for attempt in first["attempts"]][-1] == "done"
    assert len(first["attempts"]) == 2
    assert first["program"]["arguments"] == ["--batch-size=16", "--units=2"]
    assert record("sweep/trials/1")["status"] == "finished"
    assert not (place / "runs").exists(), "the directory that the script names stays as it is"
    found = json.loads((place / "sweep" / "trials.json").read_text())
    assert [row["state"] for row in found["trials"]] == ["complete", "complete"]

    alone = start("train.py", "--batch-size=16", "--units=2")
    _, error = alone.communicate(timeout=600)
    assert alone.returncode == 0, error
    assert record("runs/mine")["digest"] == first["digest"], "the bits of a run without a sweep, and without a kill"


def kill_in_training(directory, sweep):
    """Kills the process that trains there, after it has saved."""
    while sweep.poll() is None:
        saved = [path for path in (directory / "checkpoints").glob("*") if path.name.isdecimal()]
        if saved and (directory / ".lock.json").is_file():
            os.kill(json.loads((directory / ".lock.json").read_text())["pid"], signal.SIGKILL)
            return
        time.sleep(0.02)
    pytest.fail(f"the sweep ended too early: {sweep.communicate()[1]}")


def test_a_script_that_keeps_no_run_says_so(place):
    (place / "train.py").write_text(SCRIPT.replace(', model_dir="runs/mine"', "").replace("epochs=20", "epochs=1"))
    sweep = start("-m", "everstep", "sweep", "train.py", "units=2,3")
    _, error = sweep.communicate(timeout=600)
    assert sweep.returncode == 1
    assert "train.py has kept no run: pass model_dir=… to everstep.fit" in error


def test_an_option_that_the_script_does_not_have(place):
    sweep = start("-m", "everstep", "sweep", "train.py", "width=2")
    sweep.communicate(timeout=600)
    assert sweep.returncode == 2, "nothing varies"
    sweep = start("-m", "everstep", "sweep", "train.py", "width=2,3")
    _, error = sweep.communicate(timeout=600)
    assert sweep.returncode == 2
    assert "train.py: error: unrecognized arguments: --width=2" in error
    assert "--width=3" not in error, "the second trial is not tried"
